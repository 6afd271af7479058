#include "lockstep/parallel/tensor/tensor_parallel_bert.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/hooks/thread_generator.h"
#include "lockstep/parallel/tensor/tensor_regions.h"

namespace lockstep {
namespace {

void meet_of_bert(Communicator comm, const BertConfig& config) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "tensor bert: config %08x",
                static_cast<uint32_t>(fingerprint(to_json(config))));
  comm.iall_reduce(at::zeros({1}, at::kByte), ReduceOp::kMax, call_note(text.data())).wait();
}

BertClassifier undrawn_part(const BertConfig& config, const Communicator& comm) {
  return BertClassifier(config, InitialParameters::kNone, bert_split(comm));
}

// Part 0's default generator; elsewhere one that stands where it does.
at::Generator generator_of_part(Communicator& comm) {
  at::Generator mine = hooks::ThreadGenerator::current();
  if (!mine.defined()) mine = at::detail::getDefaultCPUGenerator();
  at::Tensor state;
  {
    const std::lock_guard lock(mine.mutex());
    state = mine.get_state().contiguous();
  }
  comm.broadcast(state, 0);
  if (comm.rank() == 0) return mine;
  at::Generator same = at::make_generator<at::CPUGeneratorImpl>();
  same.set_state(state);
  return same;
}

}  // namespace

BertSplit bert_split(const Communicator& comm) {
  BertSplit split{.part = comm.rank(), .parts = comm.size()};
  if (split.parts == 1) return split;
  split.enter = [comm](const at::Tensor& rows) { return copy_to_parts(comm, rows); };
  split.leave = [comm](const at::Tensor& rows) { return reduce_from_parts(comm, rows); };
  split.generator = [comm = Communicator(comm)]() mutable { return generator_of_part(comm); };
  return split;
}

TensorPlan bert_tensor_plan(const BertConfig& config) {
  const std::string layer = "bert.encoder.layer.*.";
  const int64_t heads = config.num_attention_heads;
  return TensorPlan({{"bert.embeddings.word_embeddings", TensorStyle::kVocabulary},
                     {layer + "attention.self.*", TensorStyle::kHeads, heads},
                     {layer + "attention.output.dense", TensorStyle::kRow, heads},
                     {layer + "intermediate.dense", TensorStyle::kColumn},
                     {layer + "output.dense", TensorStyle::kRow}});
}

NamedShapes bert_parameter_shapes(const BertConfig& config) {
  const BertClassifier model(config, InitialParameters::kNone);  // memory that nobody touches
  NamedShapes shapes;
  for (const auto& item : model->named_parameters())
    shapes.emplace_back(item.key(), item.value().sizes().vec());
  return shapes;
}

TensorParts bert_tensor_parts(const BertConfig& config, const Communicator& comm) {
  return TensorParts(comm, bert_tensor_plan(config), bert_parameter_shapes(config));
}

BertClassifier tensor_parallel_bert(const BertConfig& config, const Communicator& comm,
                                    const ParameterParts& values) {
  const TensorParts parts = bert_tensor_parts(config, comm);
  BertClassifier model = undrawn_part(config, comm);
  meet_of_bert(comm, config);
  parts.fill(parameters_of(model), values);
  return model;
}

BertClassifier tensor_parallel_bert(const BertClassifier& whole, const Communicator& comm) {
  const BertConfig& config = whole->config();
  const TensorParts parts = bert_tensor_parts(config, comm);
  BertClassifier model = undrawn_part(config, comm);
  meet_of_bert(comm, config);
  const auto sources = whole->named_parameters();
  model->to(sources.begin()->value().scalar_type());
  NamedTensors mine = parameters_of(model);
  parts.copy(mine, to_named_tensors(sources));
  for (auto& [name, parameter] : mine) parameter.set_requires_grad(sources[name].requires_grad());
  model->train(whole->is_training());
  return model;
}

}  // namespace lockstep
