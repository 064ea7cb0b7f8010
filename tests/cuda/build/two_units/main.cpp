// Tests a program of two units. Each has its own launch code (DIFFERENT=1), or both share it (0). A
// plan for instructions that the program lacks is refused.

#include <string>

#include "cuda/build/runtime.hpp"
#include "cuda/build/two_units/unit.hpp"

int main() {
  const two_units::Unit first = two_units::unit<1>(), second = two_units::unit<2>();
  const bool different = DIFFERENT != 0;
  stand_in::expect((first.current_device != second.current_device) == different, "current_device");
  stand_in::expect((first.compiled_arch != second.compiled_arch) == different, "compiled_arch");
  stand_in::expect((first.stream != second.stream) == different,
                   first.stream + " and " + second.stream);

  stand_in::most_threads = 32;  // code of sm_80
  const std::string said = first.launch(true);
  stand_in::expect(said.find("the program has code of sm_80") != std::string::npos,
                   "said: " + said);
  stand_in::expect(stand_in::calls.launches == 0, "launched all the same");
  stand_in::expect(first.launch(false).empty() && stand_in::calls.launches == 1,
                   "refuses a plan for sm_80");
  stand_in::most_threads = 64;  // code of sm_90a
  stand_in::expect(first.launch(true).empty() && stand_in::calls.launches == 2,
                   "refuses a plan for sm_90a");
  return stand_in::breaches == 0 ? 0 : 1;
}
