// The concept of a module that wrappers accept.
#pragma once

namespace lockstep::inline v0 {

// A holder of a module (made by TORCH_MODULE), or a std::shared_ptr to one.
template <typename M>
concept ModulePointer = requires(M& m) {
  m->named_parameters();
  m->named_buffers();
  m->is_training();
};

}  // namespace lockstep::inline v0
