#include "lockstep/activations/checkpoint_layers.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/hooks/layer_hook.h"

namespace lockstep {
namespace {

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

bool matches(const std::string& pattern, const std::string& name) {
  const std::vector<std::string> wanted = parts_of(pattern), given = parts_of(name);
  return std::equal(wanted.begin(), wanted.end(), given.begin(), given.end(),
                    [](const auto& a, const auto& b) { return a == "*" || a == b; });
}

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
  std::vector<std::string> names;
  const auto modules = model.named_modules(std::string(), /*include_self=*/false);
  for (const std::string& pattern : which.names) {
    const bool any = std::any_of(modules.begin(), modules.end(),
                                 [&](const auto& item) { return matches(pattern, item.key()); });
    if (!any && pattern.find('*') == std::string::npos) find_module(model, pattern);  // throws
    if (!any)
      throw InvalidArgument("checkpoint_layers: no module of the model is called '" + pattern +
                            "'");
  }
  if (which.names.empty()) throw InvalidArgument("checkpoint_layers: no layer is named");
  int count = 0;
  for (const auto& item : modules) {
    const bool meant = std::any_of(which.names.begin(), which.names.end(),
                                   [&](const auto& one) { return matches(one, item.key()); });
    if (!meant || count++ % which.every != 0) continue;
    check_statistics(*item.value(), item.key());
    names.push_back(item.key());
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
                                 model.weak_from_this()}));
  return handles.release();
}

}  // namespace lockstep
