// Prints the x86-64 levels of the processor, separated by ; with the best level last. Prints
// nothing on other processors.

#include <cstdio>

#if defined(__x86_64__)
#define HAS __builtin_cpu_supports

int main() {
  const bool v2 = HAS("ssse3") && HAS("sse4.1") && HAS("sse4.2") && HAS("popcnt");
  const bool v3 = v2 && HAS("avx2") && HAS("bmi") && HAS("bmi2") && HAS("fma");
  const bool v4 = v3 && HAS("avx512f") && HAS("avx512bw") && HAS("avx512cd") && HAS("avx512dq") &&
                  HAS("avx512vl");
  std::printf("x86-64%s%s%s", v2 ? ";x86-64-v2" : "", v3 ? ";x86-64-v3" : "",
              v4 ? ";x86-64-v4" : "");
}
#else
int main() {}
#endif
