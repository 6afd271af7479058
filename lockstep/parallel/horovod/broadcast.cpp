#include "lockstep/parallel/horovod/broadcast.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

using nlohmann::json;

json outline_of(const Safetensors& state) {
  json tensors = json::array();
  for (const auto& [name, tensor] : state.tensors) {
    tensors.push_back({{"name", name},
                       {"dtype", static_cast<int>(tensor.scalar_type())},
                       {"shape", tensor.sizes().vec()}});
  }
  return {{"metadata", state.metadata}, {"tensors", std::move(tensors)}};
}

Safetensors empty_like_outline(const json& outline) {
  Safetensors state;
  state.metadata = outline.at("metadata").get<Metadata>();
  for (const json& tensor : outline.at("tensors")) {
    state.tensors.emplace_back(
        tensor.at("name").get<std::string>(),
        at::empty(tensor.at("shape").get<std::vector<int64_t>>(),
                  static_cast<at::ScalarType>(tensor.at("dtype").get<int>())));
  }
  return state;
}

std::vector<at::Tensor> values_of(const NamedTensors& tensors) {
  std::vector<at::Tensor> values;
  for (const auto& entry : tensors) values.push_back(entry.second.detach());
  return values;
}

}  // namespace

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, Communicator& comm, int root) {
  const bool is_root = comm.rank() == root;
  Safetensors state;
  json outline;
  if (is_root) {
    try {
      state = optimizer_state(optimizer);
      outline = outline_of(state);
    } catch (const InvalidArgument& error) {  // the other ranks wait
      outline = {{"error", error.what()}};
    }
  }
  outline = broadcast_object(comm, outline, root);
  if (outline.contains("error")) throw InvalidArgument(outline.at("error").get<std::string>());
  if (!is_root) state = empty_like_outline(outline);
  broadcast_coalesced(comm, values_of(state.tensors), root);
  if (is_root) return;
  set_optimizer_state(optimizer, state, "the optimizer state of rank " + std::to_string(root));
}

}  // namespace lockstep::inline v0
