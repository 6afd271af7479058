// The concepts of a model that wrappers accept.
#pragma once

#include <type_traits>

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0 {

// A holder of a module (made by TORCH_MODULE), or a std::shared_ptr to one.
template <typename M>
concept ModulePointer = requires(M& m) {
  m->named_parameters();
  m->named_buffers();
  m->is_training();
};

// The same, or a class whose copies share the parameters: a torch::jit::Module, a TensorModel
// (tensor_model.h). A module of libtorch itself is none: its copies share no later change.
template <typename M>
concept WrappedModel = ModulePointer<M> || (requires(M& m) {
                         m.named_parameters();
                         m.named_buffers();
                         m.is_training();
                       } && !std::is_base_of_v<torch::nn::Module, M>);

}  // namespace lockstep::inline v0
