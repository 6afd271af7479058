#include "lockstep/hooks/internal/dispatch_key.h"

namespace lockstep::hooks::internal {

torch::Library& kernels() {
  static torch::Library* const library = [] {
    auto* const every = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    every->fallback(torch::CppFunction::makeFallthrough());
    return new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  }();
  return *library;
}

}  // namespace lockstep::hooks::internal
