#pragma once

/// \file
/// Forward declarations and the name of the target namespace: enough to declare members and
/// functions without the library's templates.

#include <cstddef>

#include "mhla/core/arch.hpp"

namespace mhla {

struct error;
struct shape_error;
struct option_error;

inline namespace MHLA_TARGET {

// core
using Index = std::ptrdiff_t;
template <class T>
struct MatrixView;
template <class T>
struct TensorView;
template <class T>
class Tensor;
struct Mask;
struct BatchMask;
struct Sequential;
class ThreadPool;
class ExecutorRef;
struct Call;

// policy
struct Relu;
struct EluPlusOne;
struct Identity;
struct Exp;
struct Dpfp;
class AnyFeatureMap;
class Contiguous;
class BlockSizes;
class Grid;
struct GridShape;
struct NoNormalizer;
struct KeySum;
struct CrossQuery;
class AnyNormalizer;
class Pattern;
template <class A>
class MixingView;

}  // namespace MHLA_TARGET
}  // namespace mhla
