#include "lockstep/parallel/expert/expert_parallel_lm.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/expert/expert_exchange.h"
#include "lockstep/parallel/expert/expert_parts.h"

namespace lockstep {
namespace {

uint64_t generator_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state().contiguous();
  return fingerprint(std::string_view(static_cast<const char*>(state.const_data_ptr()),
                                      static_cast<size_t>(state.nbytes())));
}

// Ranks that are about to make parts of different models get Mismatch.
void compare(Communicator tokens, const LmConfig& config, int parts, uint64_t random) {
  const uint64_t shape = fingerprint(to_json(config) + " " + std::to_string(parts));
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "expert lm: config %08x, random %08x",
                static_cast<uint32_t>(shape), static_cast<uint32_t>(random));
  tokens.iall_reduce(at::zeros({1}, at::kByte), ReduceOp::kMax, call_note(text.data())).wait();
}

TransformerLm without_values(const LmConfig& config, const Communicator& comm,
                             const Communicator& tokens) {
  return TransformerLm(config, LmOptions{.initial = InitialParameters::kNone,
                                         .experts = experts_over(comm, tokens)});
}

}  // namespace

TransformerLm expert_parallel_lm(const LmConfig& config, const Communicator& comm,
                                 const Communicator& tokens, const ParameterParts& values) {
  const ExpertParts checked(config, comm);
  compare(tokens, config, comm.size(), values ? 0 : generator_state());
  TransformerLm lm = without_values(config, comm, tokens);
  const ParameterParts from = values ? values : lm->drawn_parts();
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_of(lm))
    from(name, 0, parameter.detach().view({-1}));
  return lm;
}

TransformerLm expert_parallel_lm(const TransformerLm& whole, const Communicator& comm,
                                 const Communicator& tokens) {
  const LmConfig& config = whole->config();
  const ExpertParts checked(config, comm);
  compare(tokens, config, comm.size(), 0);
  TransformerLm lm = without_values(config, comm, tokens);
  const auto sources = whole->named_parameters();
  lm->to(sources.begin()->value().scalar_type());
  const at::NoGradGuard no_grad;
  for (auto& [name, parameter] : parameters_of(lm)) {
    const at::Tensor& source = sources[name];
    parameter.detach().copy_(source);
    parameter.set_requires_grad(source.requires_grad());
  }
  lm->train(whole->is_training());
  return lm;
}

LmGradients split_gradients(const NamedTensors& parameters) {
  LmGradients by;
  for (const auto& item : parameters)
    (is_expert_parameter(item.first) ? by.experts : by.others).push_back(item);
  return by;
}

}  // namespace lockstep
