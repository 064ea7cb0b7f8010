// A program that core/arch.hpp refuses with one sentence, because of compiler flags or macros.
#include <algorithm>

#if defined(MACROS_MIN_AND_MAX)
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#endif

#include "mhla/core/arch.hpp"  // the first of all headers

int main() {}
