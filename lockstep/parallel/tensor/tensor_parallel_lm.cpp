#include "lockstep/parallel/tensor/tensor_parallel_lm.h"

#include <ATen/ops/full.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/agree.h"
#include "lockstep/core/errors.h"
#include "lockstep/model/vocabulary_loss.h"
#include "lockstep/parallel/tensor/tensor_regions.h"

namespace lockstep {
namespace {

// Ranks that are about to make parts of different models get Mismatch.
void meet(const Communicator& comm, const LmConfig& config, uint64_t random,
          const TensorParallelOptions& options) {
  agree(comm, "tensor lm",
        {{"config", fingerprint(to_json(config) + (options.divides_rows ? "rows" : ""))},
         {"random", random}});
}

TransformerLm part_without_values(const LmConfig& config, const Communicator& comm,
                                  const TensorParallelOptions& options) {
  LmOptions part;
  part.initial = InitialParameters::kNone;
  part.split = lm_split(config, comm, options);
  part.context = options.context;
  return TransformerLm(config, std::move(part));
}

}  // namespace

LmSplit lm_split(const LmConfig& config, const Communicator& comm,
                 const TensorParallelOptions& options) {
  LmSplit split{.part = comm.rank(), .parts = comm.size()};
  if (split.parts == 1) return split;
  split.divides_rows = options.divides_rows;
  if (split.divides_rows) {
    split.enter = [comm](const at::Tensor& rows) { return gather_rows(comm, rows); };
    split.leave = [comm](const at::Tensor& rows) { return scatter_rows(comm, rows); };
    split.share = [comm](const at::Tensor& parameter) { return copy_to_parts(comm, parameter); };
  } else {
    split.enter = [comm](const at::Tensor& rows) { return copy_to_parts(comm, rows); };
    split.leave = [comm](const at::Tensor& rows) { return reduce_from_parts(comm, rows); };
  }
  split.combine = [comm = Communicator(comm)](const at::Tensor& statistics) mutable {
    const auto reduce = [&comm](ReduceOp op, const char* note) {
      return [&comm, op, note](const at::Tensor& x) {
        comm.iall_reduce(x, op, call_note(note)).wait();
      };
    };
    combine_statistics(statistics, reduce(ReduceOp::kMax, "tensor: largest logits"),
                       reduce(ReduceOp::kSum, "tensor: sums of exponentials"));
  };
  if (config.key_value_heads() < split.parts) {
    if (split.parts % config.key_value_heads() != 0)
      throw InvalidArgument("lm_split: " + std::to_string(config.key_value_heads()) +
                            " heads of keys do not divide among " + std::to_string(split.parts) +
                            " parts; take a number of parts that is a multiple or a divisor");
    const int64_t head = split.part * config.key_value_heads() / split.parts;
    const Communicator sharers =
        config.key_value_heads() == 1
            ? comm
            : Communicator(comm).split(static_cast<int>(head)).value();  // each has one
    split.share_head = [sharers](const at::Tensor& parameter) {
      return copy_to_parts(sharers, parameter);
    };
  }
  std::vector<int64_t> columns;
  for (int64_t part = 0; part < split.parts; ++part)
    columns.push_back(split.vocabulary_begin(config.vocab_size, part + 1) -
                      split.vocabulary_begin(config.vocab_size, part));
  split.gather = [comm, columns](const at::Tensor& logits) {
    return gather_columns(comm, logits, columns);
  };
  split.agree = [comm = Communicator(comm)](uint64_t drawn) mutable {
    const at::Tensor seed = at::full({1}, static_cast<int64_t>(drawn), at::kLong);
    comm.broadcast(seed, 0);
    return static_cast<uint64_t>(seed.item<int64_t>());
  };
  return split;
}

TensorParts lm_tensor_parts(const LmConfig& config, const Communicator& comm) {
  return TensorParts(comm, lm_tensor_plan(config), lm_parameter_shapes(config));
}

TransformerLm tensor_parallel_lm(const LmConfig& config, const Communicator& comm,
                                 const ParameterParts& values,
                                 const TensorParallelOptions& options) {
  const TensorParts parts = lm_tensor_parts(config, comm);
  TransformerLm lm = part_without_values(config, comm, options);
  meet(comm, config, values ? 0 : random_fingerprint(), options);
  // Elements count in the whole model there too.
  parts.fill(parameters_of(lm), values ? values : lm->drawn_parts());
  return lm;
}

TransformerLm tensor_parallel_lm(const TransformerLm& whole, const Communicator& comm,
                                 const TensorParallelOptions& options) {
  const LmConfig& config = whole->config();
  const TensorParts parts = lm_tensor_parts(config, comm);
  TransformerLm lm = part_without_values(config, comm, options);
  meet(comm, config, 0, options);
  const auto sources = whole->named_parameters();
  lm->to(sources.begin()->value().scalar_type());
  NamedTensors mine = parameters_of(lm);
  parts.copy(mine, to_named_tensors(sources));
  for (auto& [name, parameter] : mine) parameter.set_requires_grad(sources[name].requires_grad());
  lm->train(whole->is_training());
  return lm;
}

}  // namespace lockstep
