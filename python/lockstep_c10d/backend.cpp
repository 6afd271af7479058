#include "backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>

#include "lockstep/core/errors.h"
#include "reductions.h"
#include "rows.h"
#include "site.h"
#include "sparse.h"

namespace lockstep::inline v0::python {
namespace {

using c10d::OpType;

// Above the tags that users are likely to take.
constexpr int kMonitorTag = 0x70000000;

void require(bool condition, const char* operation, const char* what) {
  if (!condition) throw InvalidArgument(std::string(operation) + ": " + what);
}

// The one tensor of a list; several are a habit from when a process drove several GPUs.
at::Tensor only(const std::vector<at::Tensor>& tensors, const char* operation) {
  require(tensors.size() == 1, operation, "one tensor a call, please");
  return tensors.front();
}

const std::vector<at::Tensor>& only(const std::vector<std::vector<at::Tensor>>& lists,
                                    const char* operation) {
  require(lists.size() == 1, operation, "one list of tensors a call, please");
  return lists.front();
}

void require_equal_parts(const std::vector<at::Tensor>& parts, const at::Tensor& like, int size,
                         const char* operation) {
  require(parts.size() == static_cast<size_t>(size), operation, "one tensor a rank, please");
  for (const at::Tensor& part : parts) {
    require(part.scalar_type() == like.scalar_type() && part.numel() == like.numel(), operation,
            "all tensors must have one dtype and number of elements");
  }
}

bool all_equal(const std::vector<int64_t>& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

// Elements for each rank, of a tensor that is split along dim 0.
std::vector<int64_t> split_elements(const std::vector<int64_t>& splits, const at::Tensor& tensor,
                                    int64_t wire_elements, int size, const char* operation) {
  if (splits.empty()) {
    require(tensor.dim() > 0 && tensor.size(0) % size == 0, operation,
            "dim 0 does not divide by the number of ranks");
    return std::vector<int64_t>(size, wire_elements / size);
  }
  require(splits.size() == static_cast<size_t>(size), operation, "one split size a rank, please");
  require(std::accumulate(splits.begin(), splits.end(), int64_t{0}) == tensor.size(0), operation,
          "the split sizes do not add up to dim 0");
  std::vector<int64_t> elements;
  const int64_t width = tensor.size(0) == 0 ? 0 : wire_elements / tensor.size(0);
  for (const int64_t rows : splits) elements.push_back(rows * width);
  return elements;
}

}  // namespace

LockstepBackend::LockstepBackend(Communicator comm, std::chrono::milliseconds timeout)
    : c10d::Backend(comm.rank(), comm.size()),
      executor_(std::make_shared<Executor>(std::move(comm))),
      timeout_(timeout) {
  init();
}

LockstepBackend::~LockstepBackend() {
  executor_->close();
}

c10::intrusive_ptr<c10d::Backend::Options> LockstepBackend::getBackendOptions() {
  return c10::make_intrusive<Options>("lockstep", timeout_.load());
}

std::chrono::milliseconds LockstepBackend::timeout_of(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout || asked == kNoTimeout ? timeout_.load() : asked;
}

template <typename Opts>
Task LockstepBackend::collective(OpType type, const char* title, Tensors inputs,
                                 TensorLists outputs, const Opts& opts) const {
  Task task;
  task.type = type;
  task.title = title;
  task.inputs = std::move(inputs);
  task.outputs = std::move(outputs);
  task.timeout = timeout_of(opts.timeout);
  task.async = opts.asyncOp;
  task.site = caller_site();
  return task;
}

Task LockstepBackend::message(OpType type, const char* title, Tensors tensors) const {
  Task task;
  task.type = type;
  task.title = title;
  task.inputs = tensors;
  task.outputs = {std::move(tensors)};
  task.timeout = timeout_.load();
  task.message = true;
  task.site = caller_site();
  return task;
}

LockstepBackend::Work LockstepBackend::submit(Task task) {
  const uint64_t sequence = task.message ? sequence_.load() : ++sequence_;
  return executor_->submit(sequence, std::move(task));
}

LockstepBackend::Work LockstepBackend::broadcast(Tensors& tensors,
                                                 const c10d::BroadcastOptions& opts) {
  const Row row = row_to_move(only(tensors, "broadcast"));
  const int root = static_cast<int>(opts.rootRank);
  Task task = collective(OpType::BROADCAST, "lockstep:broadcast", tensors, {tensors}, opts);
  task.steps = {
      [row, root](Communicator& comm, Site site) { return comm.ibroadcast(row.wire, root, site); }};
  if (row.copied && rank_ != root) task.finish = [row] { row.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::allreduce(Tensors& tensors,
                                                 const c10d::AllreduceOptions& opts) {
  const at::Tensor tensor = only(tensors, "all_reduce");
  if (tensor.is_sparse()) return allreduce_sparse(tensors, opts);
  const Reduction reduction = to_reduction(opts.reduceOp);
  const Row row = row_to_reduce(tensor, reduction.complex_as_pairs);
  Task task = collective(OpType::ALLREDUCE, "lockstep:all_reduce", tensors, {tensors}, opts);
  task.steps = {[row, reduction](Communicator& comm, Site site) {
    reduction.scale(row.wire);
    return comm.iall_reduce(row.wire, reduction.op, site);
  }};
  if (row.copied) task.finish = [row] { row.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::allreduce_sparse(Tensors& tensors,
                                                        const c10d::AllreduceOptions& opts) {
  const at::Tensor tensor = only(tensors, "all_reduce");
  require(tensor.is_sparse(), "all_reduce", "not a sparse COO tensor");
  require(opts.reduceOp.op_ == c10d::ReduceOp::SUM, "all_reduce",
          "sparse tensors can be summed, and nothing else");
  Task task =
      collective(OpType::_ALLREDUCE_SPARSE, "lockstep:sparse_all_reduce", tensors, {tensors}, opts);
  const auto sum = std::make_shared<SparseSum>(tensor);
  task.steps = sum->steps();
  task.finish = [sum] { sum->finish(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  require(!tensors.empty(), "all_reduce_coalesced", "the list of tensors is empty");
  for (const at::Tensor& tensor : tensors) {
    require(tensor.scalar_type() == tensors.front().scalar_type(), "all_reduce_coalesced",
            "all tensors must have one dtype");
  }
  const Reduction reduction = to_reduction(opts.reduceOp);
  const Joined joined = join_to_reduce(tensors, reduction.complex_as_pairs);
  Task task =
      collective(OpType::ALLREDUCE_COALESCED, "lockstep:all_reduce", tensors, {tensors}, opts);
  task.steps = {[joined, reduction](Communicator& comm, Site site) {
    reduction.scale(joined.wire);
    return comm.iall_reduce(joined.wire, reduction.op, site);
  }};
  if (joined.copied) task.finish = [joined] { joined.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const Reduction reduction = to_reduction(opts.reduceOp);
  const Row row = row_to_reduce(only(tensors, "reduce"), reduction.complex_as_pairs);
  const int root = static_cast<int>(opts.rootRank);
  Task task = collective(OpType::REDUCE, "lockstep:reduce", tensors, {tensors}, opts);
  // The others' tensors stay as they are.
  task.steps = {[row, reduction, root](Communicator& comm, Site site) {
    if (comm.rank() != root)
      return comm.ireduce(reduction.scaled(row.wire), root, reduction.op, site);
    reduction.scale(row.wire);
    return comm.ireduce(row.wire, root, reduction.op, site);
  }};
  if (row.copied && rank_ == root) task.finish = [row] { row.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& opts) {
  const Row input = row_to_move(only(inputs, "all_gather"));
  const Tensors& parts = only(outputs, "all_gather");
  require(parts.size() == static_cast<size_t>(size_), "all_gather", "one output a rank, please");
  for (const at::Tensor& part : parts) {
    require(part.scalar_type() == input.tensor.scalar_type(), "all_gather",
            "all tensors must have one dtype");
  }
  require(parts[rank_].numel() == input.tensor.numel(), "all_gather",
          "the output of this rank's part has another number of elements than the input");
  const Joined output = join_to_move(parts, /*fill=*/false);
  Task task = collective(OpType::ALLGATHER, "lockstep:all_gather", inputs, outputs, opts);
  task.steps = {[input, output](Communicator& comm, Site site) {
    return all_equal(output.counts)
               ? comm.iall_gather(output.wire, input.wire, site)
               : comm.iall_gatherv(output.wire, input.wire, output.counts, site);
  }};
  if (output.copied) task.finish = [output] { output.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::AllgatherOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

LockstepBackend::Work LockstepBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  require(!inputs.empty() && outputs.size() == inputs.size(), "all_gather_into_tensor",
          "one output an input, please");
  Task task =
      collective(OpType::_ALLGATHER_BASE, "lockstep:_all_gather_base", inputs, {outputs}, opts);
  std::vector<Row> results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    require(outputs[i].scalar_type() == inputs[i].scalar_type() &&
                outputs[i].numel() == inputs[i].numel() * size_,
            "all_gather_into_tensor",
            "the output must have the input's dtype and as many elements as all ranks' inputs");
    const Row input = row_to_move(inputs[i]);
    const Row output = row_to_move(outputs[i]);
    // The output may hold the input, at its place.
    const bool inside = output.wire.is_alias_of(input.wire);
    task.steps.emplace_back([input, output, inside](Communicator& comm, Site site) {
      return comm.iall_gather(output.wire, inside ? input.wire.clone() : input.wire, site);
    });
    if (output.copied) results.push_back(output);
  }
  if (!results.empty()) {
    task.finish = [results] {
      for (const Row& row : results) row.restore();
    };
  }
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& opts) {
  require(outputs.size() == static_cast<size_t>(size_), "all_gather_coalesced",
          "one list of outputs a rank, please");
  Tensors parts;
  for (const Tensors& list : outputs) {
    require(list.size() == inputs.size(), "all_gather_coalesced", "one output an input, please");
    for (size_t i = 0; i < inputs.size(); ++i) {
      require(
          list[i].scalar_type() == inputs[i].scalar_type() && list[i].sizes() == inputs[i].sizes(),
          "all_gather_coalesced", "outputs must have their inputs' dtype and shape");
    }
    parts.insert(parts.end(), list.begin(), list.end());
  }
  const Joined input = join_to_move(inputs, /*fill=*/true);
  const Joined output = join_to_move(parts, /*fill=*/false);
  Task task = collective(OpType::ALLGATHER_COALESCED, "lockstep:all_gather", inputs, outputs, opts);
  task.steps = {[input, output](Communicator& comm, Site site) {
    return comm.iall_gather(output.wire, input.wire, site);
  }};
  if (output.copied) task.finish = [output] { output.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::gather(TensorLists& outputs, Tensors& inputs,
                                              const c10d::GatherOptions& opts) {
  const int root = static_cast<int>(opts.rootRank);
  const Row input = row_to_move(only(inputs, "gather"));
  Joined output;
  if (rank_ == root) {
    require_equal_parts(only(outputs, "gather"), input.tensor, size_, "gather");
    output = join_to_move(outputs.front(), /*fill=*/false);
  } else {
    require(outputs.empty(), "gather", "outputs are for the root only");
  }
  Task task = collective(OpType::GATHER, "lockstep:gather", inputs, outputs, opts);
  task.steps = {[input, output, root](Communicator& comm, Site site) {
    return comm.igather(output.wire, input.wire, root, site);
  }};
  if (output.copied) task.finish = [output] { output.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                               const c10d::ScatterOptions& opts) {
  const int root = static_cast<int>(opts.rootRank);
  const Row output = row_to_move(only(outputs, "scatter"));
  Joined input;
  if (rank_ == root) {
    require_equal_parts(only(inputs, "scatter"), output.tensor, size_, "scatter");
    input = join_to_move(inputs.front(), /*fill=*/true);
  } else {
    require(inputs.empty(), "scatter", "inputs are for the root only");
  }
  Task task = collective(OpType::SCATTER, "lockstep:scatter",
                         inputs.empty() ? Tensors() : inputs.front(), {outputs}, opts);
  task.steps = {[input, output, root](Communicator& comm, Site site) {
    return comm.iscatter(output.wire, input.wire, root, site);
  }};
  if (output.copied) task.finish = [output] { output.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                      const c10d::ReduceScatterOptions& opts) {
  const Reduction reduction = to_reduction(opts.reduceOp);
  const Row output = row_to_reduce(only(outputs, "reduce_scatter"), reduction.complex_as_pairs);
  const Tensors& parts = only(inputs, "reduce_scatter");
  require(parts.size() == static_cast<size_t>(size_), "reduce_scatter", "one input a rank, please");
  for (const at::Tensor& part : parts) {
    require(part.scalar_type() == output.tensor.scalar_type(), "reduce_scatter",
            "all tensors must have one dtype");
  }
  require(parts[rank_].numel() == output.tensor.numel(), "reduce_scatter",
          "the output has another number of elements than this rank's part");
  const Joined input = join_to_reduce(parts, reduction.complex_as_pairs);
  Task task = collective(OpType::REDUCE_SCATTER, "lockstep:reduce_scatter", parts, {outputs}, opts);
  task.steps = {[input, output, reduction](Communicator& comm, Site site) {
    at::Tensor from = reduction.scaled(input.wire);
    if (from.is_alias_of(output.wire)) from = from.clone();
    return all_equal(input.counts)
               ? comm.ireduce_scatter(output.wire, from, reduction.op, site)
               : comm.ireduce_scatterv(output.wire, from, input.counts, reduction.op, site);
  }};
  if (output.copied) task.finish = [output] { output.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

LockstepBackend::Work LockstepBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  require(!inputs.empty() && outputs.size() == inputs.size(), "reduce_scatter_tensor",
          "one output an input, please");
  const Reduction reduction = to_reduction(opts.reduceOp);
  Task task = collective(OpType::_REDUCE_SCATTER_BASE, "lockstep:_reduce_scatter_base", inputs,
                         {outputs}, opts);
  std::vector<Row> results;
  for (size_t i = 0; i < inputs.size(); ++i) {
    require(outputs[i].scalar_type() == inputs[i].scalar_type() &&
                inputs[i].numel() == outputs[i].numel() * size_,
            "reduce_scatter_tensor",
            "the input must have the output's dtype and as many elements as all ranks' outputs");
    const Row input = row_to_reduce(inputs[i], reduction.complex_as_pairs);
    const Row output = row_to_reduce(outputs[i], reduction.complex_as_pairs);
    task.steps.emplace_back([input, output, reduction](Communicator& comm, Site site) {
      at::Tensor from = reduction.scaled(input.wire);
      if (from.is_alias_of(output.wire)) from = from.clone();
      return comm.ireduce_scatter(output.wire, from, reduction.op, site);
    });
    if (output.copied) results.push_back(output);
  }
  if (!results.empty()) {
    task.finish = [results] {
      for (const Row& row : results) row.restore();
    };
  }
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                     std::vector<int64_t>& output_splits,
                                                     std::vector<int64_t>& input_splits,
                                                     const c10d::AllToAllOptions& opts) {
  require(output.scalar_type() == input.scalar_type(), "all_to_all_single",
          "output and input must have one dtype");
  const Row from = row_to_move(input);
  const Row to = row_to_move(output);
  const std::vector<int64_t> send =
      split_elements(input_splits, input, from.wire.numel(), size_, "all_to_all_single");
  const std::vector<int64_t> receive =
      split_elements(output_splits, output, to.wire.numel(), size_, "all_to_all_single");
  Task task = collective(OpType::ALLTOALL_BASE, "lockstep:all_to_all", {input}, {{output}}, opts);
  task.steps = {[from, to, send, receive](Communicator& comm, Site site) {
    return comm.iall_to_allv(to.wire, from.wire, send, receive, site);
  }};
  if (to.copied) task.finish = [to] { to.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                const c10d::AllToAllOptions& opts) {
  require(outputs.size() == static_cast<size_t>(size_) && inputs.size() == outputs.size(),
          "all_to_all", "one input and one output a rank, please");
  for (size_t r = 0; r < inputs.size(); ++r) {
    require(inputs[r].scalar_type() == inputs.front().scalar_type() &&
                outputs[r].scalar_type() == inputs.front().scalar_type(),
            "all_to_all", "all tensors must have one dtype");
  }
  const Joined from = join_to_move(inputs, /*fill=*/true);
  const Joined to = join_to_move(outputs, /*fill=*/false);
  Task task = collective(OpType::ALLTOALL, "lockstep:all_to_all", inputs, {outputs}, opts);
  task.steps = {[from, to](Communicator& comm, Site site) {
    return comm.iall_to_allv(to.wire, from.wire, from.counts, to.counts, site);
  }};
  if (to.copied) task.finish = [to] { to.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::send(Tensors& tensors, int dst, int tag) {
  const Row row = row_to_move(only(tensors, "send"));
  Task task = message(OpType::SEND, "lockstep:send", tensors);
  task.steps = {[row, dst, tag](Communicator& comm, Site site) {
    return comm.isend(row.wire, dst, tag, site);
  }};
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::recv(Tensors& tensors, int src, int tag) {
  const Row row = row_to_move(only(tensors, "recv"));
  Task task = message(OpType::RECV, "lockstep:recv", tensors);
  task.known_source = src;
  task.steps = {[row, src, tag](Communicator& comm, Site site) {
    return comm.irecv(row.wire, src, tag, site);
  }};
  if (row.copied) task.finish = [row] { row.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::recvAnysource(Tensors& tensors, int tag) {
  const Row row = row_to_move(only(tensors, "recv"));
  Task task = message(OpType::RECVANYSOURCE, "lockstep:recvAnySource", tensors);
  // The source that was found, and where the next look begins: nobody is served last for ever.
  const auto found = std::make_shared<int>(-1);
  const auto turn = std::make_shared<int>(rank_);
  task.source = [found, turn, tag, size = size_](Communicator& comm) {
    int left = 0;
    for (int i = 0; i < size; ++i) {
      const int src = (*turn = (*turn + 1) % size);
      const Probe probe = comm.probe(src, tag);
      if (probe == Probe::kMessage) return *found = src;
      if (probe == Probe::kLeft) ++left;
    }
    if (left > 0 && left == size - 1) {
      throw PeerLost(
          "a receive from any rank has nobody left to wait for: all others have left the "
          "group",
          -1);
    }
    return -1;
  };
  task.steps = {[row, found, tag](Communicator& comm, Site site) {
    return comm.irecv(row.wire, *found, tag, site);
  }};
  if (row.copied) task.finish = [row] { row.restore(); };
  return submit(std::move(task));
}

LockstepBackend::Work LockstepBackend::barrier(const c10d::BarrierOptions& opts) {
  Task task = collective(OpType::BARRIER, "lockstep:barrier", {}, {}, opts);
  task.steps = {[](Communicator& comm, Site site) { return comm.ibarrier(site); }};
  return submit(std::move(task));
}

// Every rank tells rank 0 that it is there; rank 0 answers once all have.
void LockstepBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  const std::chrono::milliseconds timeout =
      opts.timeout == c10d::kUnsetTimeout ? timeout_.load() : opts.timeout;
  const Deadline deadline = Deadline::after(timeout);
  const int tag = kMonitorTag + (monitored_++ & 0xfffff);
  const auto exchange = [&](int peer, bool receive) {
    const at::Tensor token = at::zeros({1}, at::kByte);
    Task task =
        message(receive ? OpType::RECV : OpType::SEND, "lockstep:monitored_barrier", {token});
    task.timeout = std::chrono::hours(24 * 365);  // it is given up here, and nothing with it
    task.steps = {[token, peer, tag, receive](Communicator& comm, Site site) {
      return receive ? comm.irecv(token, peer, tag, site) : comm.isend(token, peer, tag, site);
    }};
    return executor_->submit(sequence_, std::move(task));
  };
  const auto arrived = [&](const c10::intrusive_ptr<ExecutorWork>& work) {
    if (executor_->wait(*work, deadline)) {
      if (const std::exception_ptr error = work->exception()) std::rethrow_exception(error);
      return true;
    }
    executor_->forget(*work);
    return false;
  };
  const std::string after = " in " + std::to_string(timeout.count()) + " ms";
  if (rank_ != 0) {
    exchange(0, false);
    if (!arrived(exchange(0, true))) {
      C10_THROW_ERROR(DistBackendError,
                      "Rank " + std::to_string(rank_) +
                          " successfully reached monitoredBarrier, but received errors while "
                          "waiting for send/recv from rank 0: no answer" +
                          after + "; rank 0 is missing, or its error names the ranks that are");
    }
    return;
  }
  if (deadline.expired()) {
    C10_THROW_ERROR(DistBackendError, "Rank 0 timed out in monitoredBarrier after " +
                                          std::to_string(timeout.count()) + " ms");
  }
  std::vector<c10::intrusive_ptr<ExecutorWork>> tokens;
  for (int r = 1; r < size_; ++r) tokens.push_back(exchange(r, true));
  std::string missing;
  for (int r = 1; r < size_; ++r) {
    if (!missing.empty() && !wait_all_ranks) {
      executor_->forget(*tokens[r - 1]);
    } else if (!arrived(tokens[r - 1])) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
  }
  if (!missing.empty()) {
    C10_THROW_ERROR(DistBackendError,
                    (missing.find(',') == std::string::npos ? "Rank " : "Ranks ") + missing +
                        " failed to pass monitoredBarrier" + after);
  }
  std::vector<c10::intrusive_ptr<ExecutorWork>> answers;
  for (int r = 1; r < size_; ++r) answers.push_back(exchange(r, false));
  for (const auto& answer : answers) arrived(answer);
}

void LockstepBackend::abort() {
  executor_->abort("torch.distributed aborted the process group");
}

void LockstepBackend::shutdown() {
  executor_->close();
}

}  // namespace lockstep::inline v0::python
