#include "lockstep/train/rank_share.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/checkpoint/scaler_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/recover/rank_copy.h"

namespace lockstep::inline v0 {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& why) {
  throw DataError(std::string(kGivenBack) + " is damaged: " + why);
}

Json described(const NamedTensors& tensors) {
  Json list = Json::array();
  for (const auto& [name, tensor] : tensors)
    list.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  return list;
}

int64_t bytes_of(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// Of a strategy under which every rank has all parameters and the optimizer's state. The layout:
// [bytes of the description] description, parameters, state.
class WholeShares final : public StateShares {
 public:
  WholeShares(const torch::nn::Module& model, torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer),
        parameters_(parameters_of(model)),
        state_(optimizer_state(optimizer)),
        description_(Json{{"parameters", described(parameters_)},
                          {"state", described(state_.tensors)},
                          {"metadata", state_.metadata}}
                         .dump()) {}

  int64_t bytes() override {
    return static_cast<int64_t>(sizeof(int64_t) + description_.size()) + bytes_of(parameters_) +
           bytes_of(state_.tensors);
  }
  void write(const at::Tensor& into) override {
    const auto length = static_cast<int64_t>(description_.size());
    auto* const to = into.mutable_data_ptr<uint8_t>();
    std::memcpy(to, &length, sizeof length);
    std::memcpy(to + sizeof length, description_.data(), description_.size());
    auto at = static_cast<int64_t>(sizeof length) + length;
    for (const NamedTensors* tensors : {&parameters_, &state_.tensors}) {
      for (const auto& [name, tensor] : *tensors) {
        const auto count = static_cast<int64_t>(tensor.nbytes());
        if (count == 0) continue;
        into.narrow(0, at, count).copy_(tensor.detach().contiguous().view(-1).view(at::kByte));
        at += count;
      }
    }
  }
  // Checks everything before anything changes.
  void restore(const at::Tensor& share) override {
    int64_t length = 0;
    auto at = static_cast<int64_t>(sizeof length);
    if (share.numel() < at) refuse("it is too short");
    std::memcpy(&length, share.const_data_ptr(), sizeof length);
    if (length < 0 || length > share.numel() - at) refuse("it is too short");
    const auto* const text = reinterpret_cast<const char*>(share.const_data_ptr<uint8_t>()) + at;
    const Json description = Json::parse(text, text + length);
    at += length;
    if (description.at("parameters") != described(parameters_)) refuse("it is of another model");
    Safetensors state;
    for (const Json& one : description.at("state"))
      state.tensors.emplace_back(
          one.at(0).get<std::string>(),
          at::empty(one.at(2).get<std::vector<int64_t>>(),
                    at::TensorOptions(static_cast<at::ScalarType>(one.at(1).get<int>()))));
    state.metadata = description.at("metadata").get<Metadata>();
    const int64_t of_parameters = bytes_of(parameters_);
    if (share.numel() - at != of_parameters + bytes_of(state.tensors)) refuse("it is too short");
    const auto copy = [&](const at::Tensor& tensor, int64_t from) {
      const auto count = static_cast<int64_t>(tensor.nbytes());
      if (count > 0)
        tensor.copy_(share.narrow(0, from, count)
                         .clone()  // aligned
                         .view(tensor.scalar_type())
                         .view(tensor.sizes()));
      return from + count;
    };
    int64_t next = at + of_parameters;
    for (const auto& [name, tensor] : state.tensors) next = copy(tensor, next);
    set_optimizer_state(optimizer_, state, kGivenBack);
    for (const auto& [name, tensor] : parameters_) at = copy(tensor, at);
  }

 private:
  torch::optim::Optimizer& optimizer_;
  NamedTensors parameters_;
  Safetensors state_;
  std::string description_;
};

// Calls `use` with the shares that there are.
template <typename Use>
void with_shares(const RankParts& of, const Use& use) {
  if (StateShares* const own = of.strategy.state().shares()) return use(*own);
  WholeShares whole(*of.strategy.model(), of.optimizer);
  use(whole);
}

// What a share has not: buffers, and of divided states the parameters that no optimizer changes,
// frozen ones and those of no group. Of a model that is divided it has all.
std::vector<at::Tensor> others_of(const RankParts& of) {
  if (of.strategy.traits().divides_model) return {};
  const torch::nn::Module& model = *of.strategy.model();
  std::vector<at::Tensor> others = recover::buffers_of(model);
  if (of.strategy.state().shares() == nullptr) return others;
  const auto trained = trained_of(of.optimizer.param_groups());
  for (const auto& [name, parameter] : parameters_of(model))
    if (!trained.contains(parameter.unsafeGetTensorImpl())) others.push_back(parameter.detach());
  return others;
}

}  // namespace

std::unordered_set<const c10::TensorImpl*> trained_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::unordered_set<const c10::TensorImpl*> all;
  for (const auto& group : groups)
    for (const at::Tensor& parameter : group.params())
      if (parameter.requires_grad()) all.insert(parameter.unsafeGetTensorImpl());
  return all;
}

void check_has_shares(const Strategy& strategy, const std::string& who) {
  if (!strategy.traits().trains_apart) return;
  throw InvalidArgument(who + ": under strategy " + strategy.name() +
                        " ranks train apart, and none has another one's state; take another "
                        "strategy, or go on from a checkpoint");
}

// [share] [the rest] [bytes of the rest]
at::Tensor written_share(const RankParts& of, const std::string& extra, at::Tensor memory) {
  const at::NoGradGuard no_grad;
  Json json = Json::array({Json::binary({extra.begin(), extra.end()})});
  if (of.scaler != nullptr) json.push_back(to_json(of.scaler->state()));
  std::string text;
  Json::to_cbor(json, text);
  const at::Tensor rest = recover::pack({.generator = rng_state(of.strategy.comm().device()),
                                         .buffers = others_of(of),
                                         .extra = text});
  at::Tensor written;
  with_shares(of, [&](StateShares& shares) {
    const int64_t share = shares.bytes(), length = rest.numel();
    const int64_t all = share + length + static_cast<int64_t>(sizeof length);
    // A little more than is needed, as `extra` grows by some bytes now and then.
    if (!memory.defined() || memory.storage().nbytes() < static_cast<size_t>(all))
      memory = at::empty({all + all / 64}, at::kByte);
    written = at::empty({0}, at::kByte).set_(memory.storage(), 0, {all});
    shares.write(written.narrow(0, 0, share));
    written.narrow(0, share, length).copy_(rest);
    std::memcpy(written.mutable_data_ptr<uint8_t>() + share + length, &length, sizeof length);
  });
  return written;
}

std::string restored_share(const RankParts& of, const at::Tensor& given) try {
  const at::NoGradGuard no_grad;
  int64_t length = 0;
  const int64_t end = given.numel() - static_cast<int64_t>(sizeof length);
  if (end > 0) std::memcpy(&length, given.const_data_ptr<uint8_t>() + end, sizeof length);
  if (length < 1 || length > end) refuse("it is too short");
  with_shares(of, [&](StateShares& shares) { shares.restore(given.narrow(0, 0, end - length)); });
  const std::vector<at::Tensor> others = others_of(of);
  const recover::RankState rank = recover::unpack(given.narrow(0, end - length, length), others);
  for (size_t i = 0; i < others.size(); ++i) others[i].copy_(rank.buffers[i]);
  set_rng_state(rank.generator, of.strategy.comm().device(), kGivenBack);
  const Json json = Json::from_cbor(rank.extra);
  if (of.scaler != nullptr)
    of.scaler->load_state(scaler_state_from_json(json.at(1).get<std::string>(), kGivenBack));
  const auto& extra = json.at(0).get_binary();
  return {extra.begin(), extra.end()};
} catch (const Json::exception& error) {
  refuse(error.what());
} catch (const CheckpointError& error) {  // what it is made of is used by checkpoints, too
  throw DataError(error.what());
}

}  // namespace lockstep::inline v0
