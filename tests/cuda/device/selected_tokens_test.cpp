// Tests of forms with masks of tokens and packed sequences on a device, for all widths and types,
// against the CPU's form in double.

#include "cuda/device/check.hpp"
#include "cuda/device/check_form.hpp"

namespace {

using device_test::CallShape;
using device_test::check;
using device_test::Selected;
using mhla::cuda::Denominator;
using mhla::cuda::FeatureMap;

void check_all(Selected which) {
  device_test::for_each_kind([which]<class T, int D, int E>() {
    for (const int tokens : {64, 300, 1000}) {
      for (const bool is_causal : {false, true}) {
        CallShape shape{.batch = 3, .heads = 2, .tokens = tokens, .block = tokens / 4};
        shape.causal = is_causal;
        shape.op.query_map = FeatureMap::elu_plus_one();
        check<T, D, E>(shape, 1, which);
        shape.op.denominator = is_causal ? Denominator::kNone : Denominator::kCrossQuery;
        shape.op.eps = 1;
        check<T, D, E>(shape, 1, which);
      }
    }
  });
}

void masks() { check_all(Selected::kMasked); }
void packed_sequences() { check_all(Selected::kPacked); }

}  // namespace

int main(int count, char** arguments) {
  return device_test::run_tests(
      {{"SelectedTokens.Masks", masks}, {"SelectedTokens.PackedSequences", packed_sequences}},
      count, arguments);
}
