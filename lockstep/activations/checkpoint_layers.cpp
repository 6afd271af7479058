#include "lockstep/activations/checkpoint_layers.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/layer_hook.h"

namespace lockstep::inline v0 {
namespace {

void check_statistics(const torch::nn::Module& layer, const std::string& name) {
  for (const auto& item : layer.named_modules(name)) {
    const torch::nn::Module& module = *item.value();
    if (module.named_buffers(/*recurse=*/false).find("running_mean") == nullptr) continue;
    const auto parameters = module.parameters(/*recurse=*/false);
    const bool frozen =
        !parameters.empty() && std::none_of(parameters.begin(), parameters.end(),
                                            [](const at::Tensor& p) { return p.requires_grad(); });
    if (frozen) continue;
    throw InvalidArgument("checkpoint_layers: '" + item.key() +
                          "' has running statistics, which a second forward would move again; "
                          "leave its layer out, or freeze it (freeze_child)");
  }
}

}  // namespace

std::vector<std::string> checkpointed_layers(const torch::nn::Module& model,
                                             const CheckpointedLayers& which) {
  if (which.every < 1)
    throw InvalidArgument("checkpoint_layers: every is " + std::to_string(which.every) +
                          ", it must be 1 or more");
  if (which.names.empty()) throw InvalidArgument("checkpoint_layers: no layer is named");
  std::vector<std::string> names;
  int count = 0;
  for (const std::string& name : modules_named(model, which.names)) {
    if (count++ % which.every != 0) continue;
    check_statistics(*find_module(model, name), name);
    names.push_back(name);
  }
  return names;
}

std::vector<HookHandle> checkpoint_layers(torch::nn::Module& model,
                                          const CheckpointedLayers& which) {
  const std::vector<std::string> names = checkpointed_layers(model, which);
  for (const std::string& name : names) {
    if (hooks::cannot_hook(*find_module(model, name)).empty())
      throw InvalidArgument("checkpoint_layers: '" + name +
                            "' is one layer of libtorch, which keeps little but its input; name "
                            "what is made of several");
  }
  activations::internal::Handles handles;
  for (const std::string& name : names)
    handles.add(wrap_forward(model, name,
                             activations::internal::CheckpointHook<at::Tensor(const at::Tensor&)>{
                                 model.weak_from_this(), which.options}));
  return handles.release();
}

}  // namespace lockstep::inline v0
