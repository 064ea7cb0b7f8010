// expect: 'in' will.*'batch' will.*'gradients' will
// Members that are views of temporaries, of which clang++ warns.
#include "mhla/mhla.hpp"

mhla::Matrix<float> matrix() { return mhla::Matrix<float>::Random(8, 4); }
mhla::Tensor<float> tensor() { return mhla::Tensor<float>({1, 8, 2, 4}); }

int main() {
  const mhla::Matrix<float> m = matrix();
  const mhla::Tensor<float> t = tensor();
  const mhla::Contiguous blocks(8, 4);
  const mhla::MixingMatrix<float> mixing = mhla::locality<float>(2);
#if defined(MHLA_CONTROL)
  const mhla::Inputs<float> in{.q = m, .k = m, .v = m};
  const mhla::BatchInputs<float> batch{.q = t, .k = t, .v = t};
  mhla::MixingMatrix<float> sums(mixing.pattern());
  const mhla::ParameterGradients<float> gradients{.mixing = sums};
#else
  const mhla::Inputs<float> in{.q = matrix(), .k = m, .v = m};
  const mhla::BatchInputs<float> batch{.q = tensor(), .k = t, .v = t};
  const mhla::ParameterGradients<float> gradients{.mixing =
                                                      mhla::MixingMatrix<float>(mixing.pattern())};
#endif
  // Views may be temporaries. So may matrices that live until the call ends.
  const mhla::Inputs<float> rows{.q = m.topRows(8), .k = m, .v = t.view().head(0, 0)};
  mhla::Matrix<float> out(8, 4);
  mhla::bidirectional(rows, blocks, mhla::locality<float>(2), out);
  mhla::bidirectional(in, blocks, mixing);
  mhla::bidirectional(batch, blocks, mixing);
  mhla::bidirectional(matrix(), matrix(), matrix(), blocks, mixing);
  return gradients.mixing.absent() ? 1 : 0;
}
