#include "lockstep/comm/communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <numeric>

#include "lockstep/comm/internal/communicator_checks.h"
#include "lockstep/comm/internal/communicator_impl.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

using namespace checks;
Communicator::Communicator(std::unique_ptr<Backend> backend, Topology topology,
                           CommunicatorOptions options, std::unique_ptr<Backend> host)
    : impl_(std::make_shared<Impl>(std::move(backend), topology, std::move(options),
                                   std::move(host))) {}

int Communicator::rank() const {
  return impl_->topology().rank;
}
int Communicator::size() const {
  return impl_->topology().size;
}
int Communicator::local_rank() const {
  return impl_->topology().local_rank;
}
int Communicator::local_size() const {
  return impl_->topology().local_size;
}
int Communicator::node_rank() const {
  return impl_->topology().node_rank;
}
at::Device Communicator::device() const {
  return impl_->options().device.value_or(impl_->capabilities().device);
}
const Capabilities& Communicator::capabilities() const {
  return impl_->capabilities();
}
const Capabilities& Communicator::host_capabilities() const {
  return impl_->host_capabilities();
}
CommunicatorStats Communicator::stats() const {
  return impl_->stats();
}
CommunicatorStats Communicator::job_stats() const {
  return impl_->job_stats();
}
double Communicator::waited() const {
  return impl_->waited();
}
std::pair<std::shared_ptr<trace::CallBoard>, int> Communicator::call_board() const {
  return {impl_->options().board, impl_->options().board_rank};
}
std::chrono::nanoseconds Communicator::timeout() const {
  return impl_->options().timeout;
}
void Communicator::progress() {
  impl_->progress();
}
void Communicator::throw_if_broken() const {
  impl_->throw_if_any_broken();
}

void Communicator::abort(const std::string& reason) noexcept {
  impl_->abort(reason);
}

Support Communicator::support(Op op, at::ScalarType dtype, ReduceOp reduce, bool v_form) const {
  if (!is_supported_dtype(dtype) || (is_reduction(op) && !is_valid_reduction(reduce, dtype)))
    return Support::kUnsupported;
  return plan_call(capabilities(), op, dtype, reduce, v_form).support;
}

namespace {

Work launch_work(const std::shared_ptr<Communicator::Impl>& impl, const OpArgs& args) {
  // This pointer keeps the whole communicator alive.
  const std::shared_ptr<Communicator::Impl> carrier(impl, &impl->carrier(args));
  return Work(std::make_shared<Work::State>(carrier, carrier->start(args)));
}

}  // namespace

// ---- barrier, broadcast, reduce, all_reduce ----

namespace {

OpArgs barrier_args(Communicator::Site site) {
  OpArgs args;
  args.site = site;
  return args;
}

OpArgs broadcast_args(const at::Tensor& tensor, int root, int size, Communicator::Site site) {
  check_tensor(Op::kBroadcast, tensor, "tensor");
  check_rank(Op::kBroadcast, "root", root, size);
  OpArgs args;
  args.op = Op::kBroadcast;
  args.output = tensor;
  args.root = root;
  args.site = site;
  return args;
}

OpArgs reduce_args(const at::Tensor& tensor, int root, ReduceOp op, int rank, int size,
                   Communicator::Site site) {
  check_tensor(Op::kReduce, tensor, "tensor");
  check_rank(Op::kReduce, "root", root, size);
  check_reduction(Op::kReduce, op, tensor);
  OpArgs args;
  args.op = Op::kReduce;
  args.input = tensor;
  if (rank == root) args.output = tensor;
  args.reduce = op;
  args.root = root;
  args.site = site;
  return args;
}

OpArgs all_reduce_args(const at::Tensor& tensor, ReduceOp op, Communicator::Site site) {
  check_tensor(Op::kAllReduce, tensor, "tensor");
  check_reduction(Op::kAllReduce, op, tensor);
  OpArgs args;
  args.op = Op::kAllReduce;
  args.input = args.output = tensor;
  args.reduce = op;
  args.site = site;
  return args;
}

}  // namespace

void Communicator::barrier(Site site) {
  impl_->run(barrier_args(site));
}
Work Communicator::ibarrier(Site site) {
  return launch_work(impl_, barrier_args(site));
}

void Communicator::broadcast(const at::Tensor& tensor, int root, Site site) {
  check_tensor(Op::kBroadcast, tensor, "tensor");
  check_rank(Op::kBroadcast, "root", root, size());
  impl_->run_in_place(Op::kBroadcast, tensor, ReduceOp::kSum, root, site);
}
Work Communicator::ibroadcast(const at::Tensor& tensor, int root, Site site) {
  return launch_work(impl_, broadcast_args(tensor, root, size(), site));
}

void Communicator::reduce(const at::Tensor& tensor, int root, ReduceOp op, Site site) {
  impl_->run(reduce_args(tensor, root, op, rank(), size(), site));
}
Work Communicator::ireduce(const at::Tensor& tensor, int root, ReduceOp op, Site site) {
  return launch_work(impl_, reduce_args(tensor, root, op, rank(), size(), site));
}

void Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op, Site site) {
  check_tensor(Op::kAllReduce, tensor, "tensor");
  check_reduction(Op::kAllReduce, op, tensor);
  impl_->run_in_place(Op::kAllReduce, tensor, op, -1, site);
}
Work Communicator::iall_reduce(const at::Tensor& tensor, ReduceOp op, Site site) {
  return launch_work(impl_, all_reduce_args(tensor, op, site));
}
Work Communicator::iall_reduce(const at::Tensor& tensor, ReduceOp op, const CallNote& note,
                               Site site) {
  OpArgs args = all_reduce_args(tensor, op, site);
  args.note = note;
  return launch_work(impl_, args);
}

at::Tensor Communicator::shared_empty(at::IntArrayRef shape, at::ScalarType dtype, Site site) {
  return impl_->shared_empty(shape, dtype, site);
}

at::Tensor Communicator::symmetric_empty(at::IntArrayRef shape, at::ScalarType dtype, Site site) {
  return impl_->symmetric_empty(shape, dtype, site);
}

// ---- gather, all_gather ----

namespace {

// One rank's part, and all parts together, undefined where this rank has none. `part_in`: the part
// is sent, as in a gather; otherwise it is received. Counts are in rows.
OpArgs parts_args(Op op, const at::Tensor& part, const at::Tensor& whole, bool part_in,
                  std::span<const int64_t> counts, int root, bool v_form, int rank,
                  Communicator::Site site) {
  check_tensor(op, part, part_in ? "tensor" : "output");
  const Rows mine(part);
  if (counts[rank] != mine.rows) {
    refuse(op, "counts[" + std::to_string(rank) + "] is " + std::to_string(counts[rank]) +
                   " but this rank's tensor has " + std::to_string(mine.rows) + " rows");
  }
  if (whole.defined()) {
    const char* name = part_in ? "output" : "input";
    check_tensor(op, whole, name);
    check_same_dtype(op, part_in ? part : whole, part_in ? whole : part);
    check_part(op, whole, mine, total(counts), name);
  }
  OpArgs args;
  args.op = op;
  args.input = part_in ? part : whole;
  args.output = part_in ? whole : part;
  args.root = root;
  args.counts = in_elements(counts, mine.width);
  args.v_form = v_form;
  args.site = site;
  return args;
}

OpArgs gather_args(const Communicator& comm, const at::Tensor& output, const at::Tensor& tensor,
                   int root, Communicator::Site site) {
  check_tensor(Op::kGather, tensor, "tensor");
  check_rank(Op::kGather, "root", root, comm.size());
  const bool here = comm.rank() == root;
  if (here && !output.defined()) refuse(Op::kGather, "`output` is undefined on the root");
  const std::vector<int64_t> counts(comm.size(), Rows(tensor).rows);
  return parts_args(Op::kGather, tensor, here ? output : at::Tensor(), true, counts, root, false,
                    comm.rank(), site);
}

OpArgs all_gather_args(const Communicator& comm, const at::Tensor& output, const at::Tensor& tensor,
                       Communicator::Site site) {
  check_tensor(Op::kAllGather, tensor, "tensor");
  check_tensor(Op::kAllGather, output, "output");
  const std::vector<int64_t> counts(comm.size(), Rows(tensor).rows);
  return parts_args(Op::kAllGather, tensor, output, true, counts, -1, false, comm.rank(), site);
}

OpArgs scatter_args(const Communicator& comm, const at::Tensor& output, const at::Tensor& input,
                    int root, Communicator::Site site) {
  check_tensor(Op::kScatter, output, "output");
  check_rank(Op::kScatter, "root", root, comm.size());
  const bool here = comm.rank() == root;
  if (here) check_tensor(Op::kScatter, input, "input");
  const std::vector<int64_t> counts(comm.size(), Rows(output).rows);
  return parts_args(Op::kScatter, output, here ? input : at::Tensor(), false, counts, root, false,
                    comm.rank(), site);
}

OpArgs reduce_scatter_args(const Communicator& comm, const at::Tensor& output,
                           const at::Tensor& input, ReduceOp op, Communicator::Site site) {
  check_tensor(Op::kReduceScatter, input, "input");
  check_reduction(Op::kReduceScatter, op, input);
  const std::vector<int64_t> counts(comm.size(),
                                    divide_rows(Op::kReduceScatter, input, comm.size()));
  OpArgs args =
      parts_args(Op::kReduceScatter, output, input, false, counts, -1, false, comm.rank(), site);
  args.reduce = op;
  return args;
}

at::Tensor make_output(const at::Tensor& like, int64_t rows) {
  return at::empty(Rows(like).shape(rows),
                   like.options().requires_grad(false).memory_format(at::MemoryFormat::Contiguous));
}

}  // namespace

at::Tensor Communicator::gather(const at::Tensor& tensor, int root, Site site) {
  check_tensor(Op::kGather, tensor, "tensor");
  at::Tensor output;
  if (rank() == root) output = make_output(tensor, Rows(tensor).rows * size());
  impl_->run(gather_args(*this, output, tensor, root, site));
  return output;
}

Work Communicator::igather(const at::Tensor& output, const at::Tensor& tensor, int root,
                           Site site) {
  return launch_work(impl_, gather_args(*this, output, tensor, root, site));
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor, Site site) {
  check_tensor(Op::kAllGather, tensor, "tensor");
  at::Tensor output = make_output(tensor, Rows(tensor).rows * size());
  impl_->run(all_gather_args(*this, output, tensor, site));
  return output;
}

Work Communicator::iall_gather(const at::Tensor& output, const at::Tensor& tensor, Site site) {
  return launch_work(impl_, all_gather_args(*this, output, tensor, site));
}

namespace {

std::vector<int64_t> exchange_counts(Communicator& comm, const at::Tensor& tensor,
                                     Communicator::Site site) {
  const at::Tensor all = comm.all_gather(at::tensor({Rows(tensor).rows}, at::kLong), site);
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + all.numel()};
}

}  // namespace

at::Tensor Communicator::gatherv(const at::Tensor& tensor, int root, Site site) {
  check_tensor(Op::kGather, tensor, "tensor");
  check_rank(Op::kGather, "root", root, size());
  const std::vector<int64_t> counts = exchange_counts(*this, tensor, site);
  at::Tensor output;
  if (rank() == root) output = make_output(tensor, total(counts));
  igatherv(output, tensor, counts, root, site).wait();
  return output;
}

at::Tensor Communicator::all_gatherv(const at::Tensor& tensor, Site site) {
  check_tensor(Op::kAllGather, tensor, "tensor");
  const std::vector<int64_t> counts = exchange_counts(*this, tensor, site);
  at::Tensor output = make_output(tensor, total(counts));
  iall_gatherv(output, tensor, counts, site).wait();
  return output;
}

Work Communicator::igatherv(const at::Tensor& output, const at::Tensor& tensor,
                            std::span<const int64_t> counts, int root, Site site) {
  check_tensor(Op::kGather, tensor, "tensor");
  check_rank(Op::kGather, "root", root, size());
  check_counts(Op::kGather, counts, size(), "counts");
  if (rank() == root && !output.defined()) refuse(Op::kGather, "`output` is undefined on the root");
  return launch_work(impl_, parts_args(Op::kGather, tensor, rank() == root ? output : at::Tensor(),
                                       true, counts, root, true, rank(), site));
}

Work Communicator::iall_gatherv(const at::Tensor& output, const at::Tensor& tensor,
                                std::span<const int64_t> counts, Site site) {
  check_tensor(Op::kAllGather, tensor, "tensor");
  check_tensor(Op::kAllGather, output, "output");
  check_counts(Op::kAllGather, counts, size(), "counts");
  return launch_work(
      impl_, parts_args(Op::kAllGather, tensor, output, true, counts, -1, true, rank(), site));
}

// ---- scatter, reduce_scatter ----

void Communicator::scatter(const at::Tensor& output, const at::Tensor& input, int root, Site site) {
  impl_->run(scatter_args(*this, output, input, root, site));
}

Work Communicator::iscatter(const at::Tensor& output, const at::Tensor& input, int root,
                            Site site) {
  return launch_work(impl_, scatter_args(*this, output, input, root, site));
}

void Communicator::scatterv(const at::Tensor& output, const at::Tensor& input,
                            std::span<const int64_t> counts, int root, Site site) {
  iscatterv(output, input, counts, root, site).wait();
}

Work Communicator::iscatterv(const at::Tensor& output, const at::Tensor& input,
                             std::span<const int64_t> counts, int root, Site site) {
  check_rank(Op::kScatter, "root", root, size());
  check_counts(Op::kScatter, counts, size(), "counts");
  if (rank() == root) check_tensor(Op::kScatter, input, "input");
  return launch_work(impl_, parts_args(Op::kScatter, output, rank() == root ? input : at::Tensor(),
                                       false, counts, root, true, rank(), site));
}

at::Tensor Communicator::reduce_scatter(const at::Tensor& input, ReduceOp op, Site site) {
  check_tensor(Op::kReduceScatter, input, "input");
  at::Tensor output = make_output(input, divide_rows(Op::kReduceScatter, input, size()));
  impl_->run(reduce_scatter_args(*this, output, input, op, site));
  return output;
}

Work Communicator::ireduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                   Site site) {
  return launch_work(impl_, reduce_scatter_args(*this, output, input, op, site));
}

at::Tensor Communicator::reduce_scatterv(const at::Tensor& input, std::span<const int64_t> counts,
                                         ReduceOp op, Site site) {
  check_tensor(Op::kReduceScatter, input, "input");
  check_counts(Op::kReduceScatter, counts, size(), "counts");
  at::Tensor output = make_output(input, counts[rank()]);
  ireduce_scatterv(output, input, counts, op, site).wait();
  return output;
}

Work Communicator::ireduce_scatterv(const at::Tensor& output, const at::Tensor& input,
                                    std::span<const int64_t> counts, ReduceOp op, Site site) {
  check_tensor(Op::kReduceScatter, input, "input");
  check_reduction(Op::kReduceScatter, op, input);
  check_counts(Op::kReduceScatter, counts, size(), "counts");
  OpArgs args =
      parts_args(Op::kReduceScatter, output, input, false, counts, -1, true, rank(), site);
  args.reduce = op;
  return launch_work(impl_, args);
}

// ---- all_to_all ----

namespace {

OpArgs all_to_all_args(const at::Tensor& output, const at::Tensor& input,
                       std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts,
                       bool v_form, Communicator::Site site) {
  check_tensor(Op::kAllToAll, output, "output");
  check_same_dtype(Op::kAllToAll, input, output);
  const Rows rows(input);
  if (rows.rows != total(send_counts)) {
    refuse(Op::kAllToAll, "`send_counts` add up to " + std::to_string(total(send_counts)) +
                              " but `input` has " + std::to_string(rows.rows) + " rows");
  }
  check_part(Op::kAllToAll, output, rows, total(recv_counts), "output");
  OpArgs args;
  args.op = Op::kAllToAll;
  args.input = input;
  args.output = output;
  args.counts = in_elements(send_counts, rows.width);
  args.recv_counts = in_elements(recv_counts, rows.width);
  args.v_form = v_form;
  args.site = site;
  return args;
}

}  // namespace

at::Tensor Communicator::all_to_all(const at::Tensor& input, Site site) {
  check_tensor(Op::kAllToAll, input, "input");
  at::Tensor output = make_output(input, Rows(input).rows);
  const std::vector<int64_t> counts(size(), divide_rows(Op::kAllToAll, input, size()));
  impl_->run(all_to_all_args(output, input, counts, counts, false, site));
  return output;
}

Work Communicator::iall_to_all(const at::Tensor& output, const at::Tensor& input, Site site) {
  check_tensor(Op::kAllToAll, input, "input");
  const std::vector<int64_t> counts(size(), divide_rows(Op::kAllToAll, input, size()));
  return launch_work(impl_, all_to_all_args(output, input, counts, counts, false, site));
}

at::Tensor Communicator::all_to_allv(const at::Tensor& input, std::span<const int64_t> send_counts,
                                     Site site) {
  check_tensor(Op::kAllToAll, input, "input");
  check_counts(Op::kAllToAll, send_counts, size(), "send_counts");
  const at::Tensor theirs = all_to_all(
      at::tensor(at::ArrayRef<int64_t>(send_counts.data(), send_counts.size()), at::kLong), site);
  const auto* data = theirs.const_data_ptr<int64_t>();
  const std::vector<int64_t> recv_counts(data, data + theirs.numel());
  at::Tensor output = make_output(input, total(recv_counts));
  iall_to_allv(output, input, send_counts, recv_counts, site).wait();
  return output;
}

Work Communicator::iall_to_allv(const at::Tensor& output, const at::Tensor& input,
                                std::span<const int64_t> send_counts,
                                std::span<const int64_t> recv_counts, Site site) {
  check_tensor(Op::kAllToAll, input, "input");
  check_counts(Op::kAllToAll, send_counts, size(), "send_counts");
  check_counts(Op::kAllToAll, recv_counts, size(), "recv_counts");
  return launch_work(impl_, all_to_all_args(output, input, send_counts, recv_counts, true, site));
}

// ---- point to point ----

namespace {

OpArgs message_args(Op op, const at::Tensor& tensor, int peer, int size, int tag,
                    Communicator::Site site) {
  check_tensor(op, tensor, "tensor");
  check_rank(op, op == Op::kSend ? "dst" : "src", peer, size);
  if (tag < 0) refuse(op, "tag " + std::to_string(tag) + " is negative");
  OpArgs args;
  args.op = op;
  (op == Op::kSend ? args.input : args.output) = tensor;
  args.peer = peer;
  args.tag = tag;
  args.site = site;
  return args;
}

}  // namespace

void Communicator::send(const at::Tensor& tensor, int dst, int tag, Site site) {
  impl_->run(message_args(Op::kSend, tensor, dst, size(), tag, site));
}
void Communicator::recv(const at::Tensor& tensor, int src, int tag, Site site) {
  impl_->run(message_args(Op::kRecv, tensor, src, size(), tag, site));
}

Work Communicator::isend(const at::Tensor& tensor, int dst, int tag, Site site) {
  return launch_work(impl_, message_args(Op::kSend, tensor, dst, size(), tag, site));
}

Probe Communicator::probe(int src, int tag) {
  check_rank(Op::kRecv, "src", src, size());
  return impl_->probe(src, tag);
}

Work Communicator::irecv(const at::Tensor& tensor, int src, int tag, Site site) {
  return launch_work(impl_, message_args(Op::kRecv, tensor, src, size(), tag, site));
}

}  // namespace lockstep::inline v0
