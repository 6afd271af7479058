#include "lockstep/comm/communicator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <numeric>

#include "lockstep/comm/communicator_impl.h"
#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string text = "[";
  for (const int64_t dim : tensor.sizes())
    text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

[[noreturn]] void refuse(Op op, const std::string& why) {
  throw InvalidArgument(std::string(to_string(op)) + ": " + why);
}

void check_tensor(Op op, const at::Tensor& tensor, const char* name) {
  if (!tensor.defined()) refuse(op, std::string("`") + name + "` is undefined; give it a tensor");
  if (!is_supported_dtype(tensor.scalar_type())) {
    refuse(op, std::string("dtype ") + c10::toString(tensor.scalar_type()) + " of `" + name +
                   "` is not carried; convert it, or view it as bytes");
  }
}

void check_rank(Op op, const char* name, int rank, int size) {
  if (rank < 0 || rank >= size) {
    refuse(op, std::string(name) + " " + std::to_string(rank) +
                   " is not a rank of this group (0 to " + std::to_string(size - 1) + ")");
  }
}

void check_reduction(Op op, ReduceOp reduce, const at::Tensor& tensor) {
  if (is_valid_reduction(reduce, tensor.scalar_type())) return;
  refuse(op, std::string(to_string(reduce)) + " is not defined on " +
                 dtype_name(tensor.scalar_type()) +
                 (reduce == ReduceOp::kAvg ? "; sum, or convert to float32 first"
                                           : "; it needs integers or bool"));
}

// A tensor as rows along dim 0. A 0-dim tensor is one row.
struct Rows {
  int64_t rows = 1;
  int64_t width = 1;  // elements a row
  std::vector<int64_t> tail;

  explicit Rows(const at::Tensor& tensor) {
    if (tensor.dim() == 0) return;
    rows = tensor.size(0);
    tail.assign(tensor.sizes().begin() + 1, tensor.sizes().end());
    for (const int64_t dim : tail) width *= dim;
  }
  std::vector<int64_t> shape(int64_t n) const {
    std::vector<int64_t> result{n};
    result.insert(result.end(), tail.begin(), tail.end());
    return result;
  }
};

int64_t total(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::vector<int64_t> elements(std::span<const int64_t> rows, int64_t width) {
  std::vector<int64_t> result(rows.begin(), rows.end());
  for (int64_t& count : result) count *= width;
  return result;
}

void check_counts(Op op, std::span<const int64_t> counts, int size, const char* name) {
  if (static_cast<int>(counts.size()) != size) {
    refuse(op, std::string("`") + name + "` has " + std::to_string(counts.size()) +
                   " entries for " + std::to_string(size) + " ranks");
  }
  for (const int64_t count : counts) {
    if (count < 0)
      refuse(op, std::string("`") + name + "` has a negative entry: " + std::to_string(count));
  }
}

void check_part(Op op, const at::Tensor& whole, const Rows& part, int64_t rows, const char* name) {
  const Rows all(whole);
  if (all.rows != rows || all.tail != part.tail) {
    refuse(op, std::string("`") + name + "` has shape " + shape_text(whole) + ", expected " +
                   std::to_string(rows) + " rows of the other tensor's shape");
  }
}

void check_same_dtype(Op op, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) {
    refuse(op, std::string("input is ") + dtype_name(a.scalar_type()) + " but output is " +
                   dtype_name(b.scalar_type()));
  }
}

int64_t divide_rows(Op op, const at::Tensor& tensor, int size) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (rows % size != 0) {
    refuse(op, "dim 0 of shape " + shape_text(tensor) + " does not divide by " +
                   std::to_string(size) + " ranks; use the v-form for unequal parts");
  }
  return rows / size;
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Backend> backend, Topology topology,
                           CommunicatorOptions options)
    : impl_(std::make_shared<Impl>(std::move(backend), topology, std::move(options))) {}

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
  return at::kCPU;
}
const Capabilities& Communicator::capabilities() const {
  return impl_->capabilities();
}
CommunicatorStats Communicator::stats() const {
  return impl_->stats();
}
std::chrono::nanoseconds Communicator::timeout() const {
  return impl_->options().timeout;
}
void Communicator::progress() {
  impl_->progress();
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

Work launch_work(const std::shared_ptr<Communicator::Impl>& impl, const Ask& ask) {
  return Work(std::make_shared<Work::State>(impl, impl->start(ask)));
}

}  // namespace

// ---- barrier, broadcast, reduce, all_reduce ----

void Communicator::barrier(Site site) {
  ibarrier(site).wait();
}

Work Communicator::ibarrier(Site site) {
  Ask ask;
  ask.site = site;
  return launch_work(impl_, ask);
}

void Communicator::broadcast(const at::Tensor& tensor, int root, Site site) {
  ibroadcast(tensor, root, site).wait();
}

Work Communicator::ibroadcast(const at::Tensor& tensor, int root, Site site) {
  check_tensor(Op::kBroadcast, tensor, "tensor");
  check_rank(Op::kBroadcast, "root", root, size());
  Ask ask;
  ask.op = Op::kBroadcast;
  ask.output = tensor;
  ask.root = root;
  ask.site = site;
  return launch_work(impl_, ask);
}

void Communicator::reduce(const at::Tensor& tensor, int root, ReduceOp op, Site site) {
  ireduce(tensor, root, op, site).wait();
}

Work Communicator::ireduce(const at::Tensor& tensor, int root, ReduceOp op, Site site) {
  check_tensor(Op::kReduce, tensor, "tensor");
  check_rank(Op::kReduce, "root", root, size());
  check_reduction(Op::kReduce, op, tensor);
  Ask ask;
  ask.op = Op::kReduce;
  ask.input = tensor;
  if (rank() == root) ask.output = tensor;
  ask.reduce = op;
  ask.root = root;
  ask.site = site;
  return launch_work(impl_, ask);
}

void Communicator::all_reduce(const at::Tensor& tensor, ReduceOp op, Site site) {
  iall_reduce(tensor, op, site).wait();
}

Work Communicator::iall_reduce(const at::Tensor& tensor, ReduceOp op, Site site) {
  check_tensor(Op::kAllReduce, tensor, "tensor");
  check_reduction(Op::kAllReduce, op, tensor);
  Ask ask;
  ask.op = Op::kAllReduce;
  ask.input = ask.output = tensor;
  ask.reduce = op;
  ask.site = site;
  return launch_work(impl_, ask);
}

// ---- gather, all_gather ----

namespace {

// gather and all_gather in all forms. `output` is undefined where the rank gets nothing; counts in
// rows.
Ask ask_gather(Op op, const at::Tensor& output, const at::Tensor& tensor,
               std::span<const int64_t> counts, int root, bool v_form, int rank,
               Communicator::Site site) {
  const Rows mine(tensor);
  if (counts[rank] != mine.rows) {
    refuse(op, "counts[" + std::to_string(rank) + "] is " + std::to_string(counts[rank]) +
                   " but this rank's tensor has " + std::to_string(mine.rows) + " rows");
  }
  if (output.defined()) {
    check_tensor(op, output, "output");
    check_same_dtype(op, tensor, output);
    check_part(op, output, mine, total(counts), "output");
  }
  Ask ask;
  ask.op = op;
  ask.input = tensor;
  ask.output = output;
  ask.root = root;
  ask.counts = elements(counts, mine.width);
  ask.v_form = v_form;
  ask.site = site;
  return ask;
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
  igather(output, tensor, root, site).wait();
  return output;
}

Work Communicator::igather(const at::Tensor& output, const at::Tensor& tensor, int root,
                           Site site) {
  check_tensor(Op::kGather, tensor, "tensor");
  check_rank(Op::kGather, "root", root, size());
  if (rank() == root && !output.defined()) refuse(Op::kGather, "`output` is undefined on the root");
  const std::vector<int64_t> counts(size(), Rows(tensor).rows);
  return launch_work(impl_, ask_gather(Op::kGather, rank() == root ? output : at::Tensor(), tensor,
                                       counts, root, false, rank(), site));
}

at::Tensor Communicator::all_gather(const at::Tensor& tensor, Site site) {
  check_tensor(Op::kAllGather, tensor, "tensor");
  at::Tensor output = make_output(tensor, Rows(tensor).rows * size());
  iall_gather(output, tensor, site).wait();
  return output;
}

Work Communicator::iall_gather(const at::Tensor& output, const at::Tensor& tensor, Site site) {
  check_tensor(Op::kAllGather, tensor, "tensor");
  check_tensor(Op::kAllGather, output, "output");
  const std::vector<int64_t> counts(size(), Rows(tensor).rows);
  return launch_work(impl_,
                     ask_gather(Op::kAllGather, output, tensor, counts, -1, false, rank(), site));
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
  return launch_work(impl_, ask_gather(Op::kGather, rank() == root ? output : at::Tensor(), tensor,
                                       counts, root, true, rank(), site));
}

Work Communicator::iall_gatherv(const at::Tensor& output, const at::Tensor& tensor,
                                std::span<const int64_t> counts, Site site) {
  check_tensor(Op::kAllGather, tensor, "tensor");
  check_tensor(Op::kAllGather, output, "output");
  check_counts(Op::kAllGather, counts, size(), "counts");
  return launch_work(impl_,
                     ask_gather(Op::kAllGather, output, tensor, counts, -1, true, rank(), site));
}

// ---- scatter, reduce_scatter ----

void Communicator::scatter(const at::Tensor& output, const at::Tensor& input, int root, Site site) {
  iscatter(output, input, root, site).wait();
}

namespace {

Ask ask_scatter(Op op, const at::Tensor& output, const at::Tensor& input,
                std::span<const int64_t> counts, int root, bool v_form, int rank,
                Communicator::Site site) {
  check_tensor(op, output, "output");
  const Rows mine(output);
  if (mine.rows != counts[rank]) {
    refuse(op, "`output` has " + std::to_string(mine.rows) + " rows but counts[" +
                   std::to_string(rank) + "] is " + std::to_string(counts[rank]));
  }
  if (input.defined()) {
    check_tensor(op, input, "input");
    check_same_dtype(op, input, output);
    check_part(op, input, mine, total(counts), "input");
  }
  Ask ask;
  ask.op = op;
  ask.input = input;
  ask.output = output;
  ask.root = root;
  ask.counts = elements(counts, mine.width);
  ask.v_form = v_form;
  ask.site = site;
  return ask;
}

}  // namespace

Work Communicator::iscatter(const at::Tensor& output, const at::Tensor& input, int root,
                            Site site) {
  check_tensor(Op::kScatter, output, "output");
  check_rank(Op::kScatter, "root", root, size());
  if (rank() == root) check_tensor(Op::kScatter, input, "input");
  const std::vector<int64_t> counts(size(), Rows(output).rows);
  return launch_work(impl_, ask_scatter(Op::kScatter, output, rank() == root ? input : at::Tensor(),
                                        counts, root, false, rank(), site));
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
  return launch_work(impl_, ask_scatter(Op::kScatter, output, rank() == root ? input : at::Tensor(),
                                        counts, root, true, rank(), site));
}

at::Tensor Communicator::reduce_scatter(const at::Tensor& input, ReduceOp op, Site site) {
  check_tensor(Op::kReduceScatter, input, "input");
  at::Tensor output = make_output(input, divide_rows(Op::kReduceScatter, input, size()));
  ireduce_scatter(output, input, op, site).wait();
  return output;
}

Work Communicator::ireduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                                   Site site) {
  check_tensor(Op::kReduceScatter, input, "input");
  check_reduction(Op::kReduceScatter, op, input);
  const std::vector<int64_t> counts(size(), divide_rows(Op::kReduceScatter, input, size()));
  Ask ask = ask_scatter(Op::kReduceScatter, output, input, counts, -1, false, rank(), site);
  ask.reduce = op;
  return launch_work(impl_, ask);
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
  Ask ask = ask_scatter(Op::kReduceScatter, output, input, counts, -1, true, rank(), site);
  ask.reduce = op;
  return launch_work(impl_, ask);
}

// ---- all_to_all ----

at::Tensor Communicator::all_to_all(const at::Tensor& input, Site site) {
  check_tensor(Op::kAllToAll, input, "input");
  at::Tensor output = make_output(input, Rows(input).rows);
  iall_to_all(output, input, site).wait();
  return output;
}

namespace {

Ask ask_all_to_all(const at::Tensor& output, const at::Tensor& input,
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
  Ask ask;
  ask.op = Op::kAllToAll;
  ask.input = input;
  ask.output = output;
  ask.counts = elements(send_counts, rows.width);
  ask.recv_counts = elements(recv_counts, rows.width);
  ask.v_form = v_form;
  ask.site = site;
  return ask;
}

}  // namespace

Work Communicator::iall_to_all(const at::Tensor& output, const at::Tensor& input, Site site) {
  check_tensor(Op::kAllToAll, input, "input");
  const std::vector<int64_t> counts(size(), divide_rows(Op::kAllToAll, input, size()));
  return launch_work(impl_, ask_all_to_all(output, input, counts, counts, false, site));
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
  return launch_work(impl_, ask_all_to_all(output, input, send_counts, recv_counts, true, site));
}

// ---- point to point ----

void Communicator::send(const at::Tensor& tensor, int dst, int tag, Site site) {
  isend(tensor, dst, tag, site).wait();
}
void Communicator::recv(const at::Tensor& tensor, int src, int tag, Site site) {
  irecv(tensor, src, tag, site).wait();
}

Work Communicator::isend(const at::Tensor& tensor, int dst, int tag, Site site) {
  check_tensor(Op::kSend, tensor, "tensor");
  check_rank(Op::kSend, "dst", dst, size());
  if (tag < 0) refuse(Op::kSend, "tag " + std::to_string(tag) + " is negative");
  Ask ask;
  ask.op = Op::kSend;
  ask.input = tensor;
  ask.peer = dst;
  ask.tag = tag;
  ask.site = site;
  return launch_work(impl_, ask);
}

Work Communicator::irecv(const at::Tensor& tensor, int src, int tag, Site site) {
  check_tensor(Op::kRecv, tensor, "tensor");
  check_rank(Op::kRecv, "src", src, size());
  if (tag < 0) refuse(Op::kRecv, "tag " + std::to_string(tag) + " is negative");
  Ask ask;
  ask.op = Op::kRecv;
  ask.output = tensor;
  ask.peer = src;
  ask.tag = tag;
  ask.site = site;
  return launch_work(impl_, ask);
}

}  // namespace lockstep
