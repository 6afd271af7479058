#include "lockstep/comm/internal/communicator_impl.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "lockstep/comm/backend/mismatch_text.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/comm/internal/vector_maths.h"
#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/exception_text.h"
#include "lockstep/core/log.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/text.h"
#include "lockstep/core/ticks.h"
#include "lockstep/device/nvtx.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0 {
namespace {

// Whether all_gather's input is this rank's own part of its output, so that no copy is needed.
bool is_own_part(const OpArgs& args, int rank) {
  if (args.op != Op::kAllGather || !args.input.is_contiguous() || !args.output.is_contiguous())
    return false;
  const int64_t before =
      std::accumulate(args.counts.begin(), args.counts.begin() + rank, int64_t{0});
  return data_of(args.input) == data_of(args.output) + before * args.output.element_size();
}

// Reachable, so that leak checkers do not report it.
struct KeptForever {
  Mutex mutex;
  std::list<std::unique_ptr<Backend>> backends LOCKSTEP_GUARDED_BY(mutex);
  std::list<std::shared_ptr<PendingOp>> operations LOCKSTEP_GUARDED_BY(mutex);
};

}  // namespace

Communicator::Impl::Impl(std::unique_ptr<Backend> backend, Topology topology,
                         CommunicatorOptions options, std::unique_ptr<Backend> host)
    : topology_(topology), options_(std::move(options)), backend_(std::move(backend)) {
  LOCKSTEP_CHECK(topology.rank >= 0 && topology.rank < topology.size, "a rank is below the size");
  LOCKSTEP_CHECK(!host || (options_.origin && host->capabilities().device.is_cpu()),
                 "an engine of the host stands beside a device's, in a job");
  settle_vector_maths();  // needed if ranks are threads
  order_ = backend_->device_order();
  for (int op = 0; op < kOpCount; ++op) {
    for (int reduce = 0; reduce < kReduceOpCount; ++reduce) {
      for (int type = 0; type < 32; ++type) {
        const auto dtype = static_cast<at::ScalarType>(type);
        if (order_ != nullptr || !is_supported_dtype(dtype) ||
            !is_valid_reduction(static_cast<ReduceOp>(reduce), dtype))
          continue;
        const Plan plan = plan_call(capabilities(), static_cast<Op>(op), dtype,
                                    static_cast<ReduceOp>(reduce), false);
        if (plan.support == Support::kNative) native_[op][reduce] |= bit(dtype);
      }
    }
  }
  device_ = capabilities().device;
  if (options_.board_rank < 0) options_.board_rank = topology.local_rank;
  if (options_.origin) {
    group_ = static_cast<uint32_t>(fingerprint(options_.origin->name));
    GroupOrigin& origin = *options_.origin;
    if (!origin.progress) {
      origin.progress = std::make_shared<JobProgress>(
          std::shared_ptr<Store>(origin.maker, &origin.maker->store()),
          origin.members[static_cast<size_t>(topology.rank)]);
    }
    job_ = origin.progress;
    job_->add(*this);
    waited_ = &job_->waited();
    backend_->set_siblings(this);
  }
  if (options_.board) options_.board->enter(options_.board_rank, static_cast<uint32_t>(::getpid()));
  if (!host) return;
  if (options_.on_broken) {
    options_.on_broken = [told = std::make_shared<std::atomic<bool>>(false),
                          then = std::move(options_.on_broken)](const std::string& reason) {
      if (!told->exchange(true)) then(reason);
    };
  }
  CommunicatorOptions beside = options_;
  beside.origin = std::make_shared<GroupOrigin>(*options_.origin);
  beside.origin->name += "/host";
  host_ = std::make_unique<Impl>(std::move(host), topology_, std::move(beside));
  host_->beside_ = this;
  beside_ = host_.get();
}

Communicator::Impl::~Impl() {
  if (job_) job_->remove(*this);
  if (watch_) {
    // Operations that the host no longer waits for are not cut off. They end, since each has its
    // deadline.
    if (broken_.get() == nullptr) watch_->drain();
    watch_->stop();
  }
  abandon_pending_ops();
  if (backend_->close()) {
    // Before the watch, which then keeps the operations that are still not complete.
    backend_.reset();
    return;
  }
  // A peer is stopped in the middle of writing to this process. When it resumes, it must not write
  // to memory with another owner, so neither the tensors of pending calls nor the engine's memory
  // are ever freed. This happens once per communicator, and usually the process is about to end.
  try {
    log_warning(
        "a rank of the group is stopped inside a call; the tensors of that call stay in memory "
        "until this process ends, since it may still write to them");
  } catch (const std::exception&) {  // then without text
  }
  static auto* const kept = new KeptForever();
  const MutexLock lock(kept->mutex);
  kept->backends.push_back(std::move(backend_));
  kept->operations.splice(kept->operations.end(), pending_ops_);
}

// Checks all that can be refused before anything is sent, and chooses how the engine does it.
Plan Communicator::Impl::check(const OpArgs& args) const {
  const at::Tensor& sample = args.input.defined() ? args.input : args.output;
  const at::ScalarType dtype = sample.defined() ? sample.scalar_type() : at::kByte;
  Plan plan = plan_call(capabilities(), args.op, dtype, args.reduce, args.v_form);
  if (plan.support == Support::kUnsupported) throw InvalidArgument(plan.reason);
  for (const at::Tensor* tensor : {&args.input, &args.output}) {
    if (!tensor->defined()) continue;
    // A tensor that is not on the engine's device is copied there; the host engine takes tensors of
    // any device.
    const bool carried =
        tensor->is_cpu() ||
        (device_.is_cpu() ? !tensor->is_meta() : tensor->device().type() == device_.type());
    if (tensor->layout() != at::kStrided || !carried) {
      throw InvalidArgument(
          "backend " + capabilities().backend + " carries dense tensors of the host and of " +
          (device_.is_cpu() ? "" : at::DeviceTypeName(device_.type(), true) + " ") +
          "devices, not " + tensor->toString() + " on " + tensor->device().str());
    }
  }
  if (args.input.defined() && args.output.defined() && !args.input.is_same(args.output) &&
      !is_own_part(args, topology_.rank)) {
    const at::MemOverlapStatus overlap = at::get_overlap_status(args.input, args.output);
    if (overlap == at::MemOverlapStatus::Full || overlap == at::MemOverlapStatus::Partial) {
      throw InvalidArgument(std::string(to_string(args.op)) +
                            ": input and output share memory; give the result a tensor of its own");
    }
  }
  if (args.output.defined() && !args.output.is_contiguous() &&
      at::has_internal_overlap(args.output) == at::MemOverlap::Yes) {
    throw InvalidArgument("the result of " + std::string(to_string(args.op)) +
                          " cannot go into a tensor whose elements share memory (an expanded one); "
                          "call .contiguous()");
  }
  return plan;
}

void Communicator::Impl::fill(const OpArgs& args, const Plan& plan, Call& call) const {
  const at::Tensor& sample = args.input.defined() ? args.input : args.output;
  call.op = plan.op;
  call.dtype = plan.wire;
  call.reduce = plan.reduce;
  call.root = args.root;
  call.peer = args.peer;
  call.tag = args.tag;
  call.counts = args.counts;
  call.recv_counts = args.recv_counts;
  call.uniform = !args.counts.empty() && !args.v_form;
  call.note = args.note;
  call.site = args.site;
  // The arguments of an operation that are not in its call must be equal on all ranks: they are
  // part of the fingerprint.
  call.count = sample.defined() && args.counts.empty() ? sample.numel() : 0;
}

uint64_t Communicator::Impl::payload(const OpArgs& args) {
  const at::Tensor& sample = args.input.defined() ? args.input : args.output;
  if (!sample.defined()) return 0;
  const int64_t elements =
      args.counts.empty() ? sample.numel()
                          : std::accumulate(args.counts.begin(), args.counts.end(), int64_t{0});
  return static_cast<uint64_t>(elements) * sample.element_size();
}

void Communicator::Impl::number(Op op, uint64_t bytes, Call& call) {
  const bool message = op == Op::kSend || op == Op::kRecv;
  // Only one thread writes it at a time.
  if (!message)
    collectives_.store(collectives_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  call.sequence = message ? ++messages_ : collectives_.load(std::memory_order_relaxed);
  counters_.count(op, bytes);
}

// Completes the call's record for the board and the engine; returns its slot on the board.
uint64_t Communicator::Impl::record(Call& call, trace::CallRecord& record, bool waits) {
  record.group = group_;
  record.begun = ticks();
  call.record = &record;
  return options_.board ? options_.board->begin(options_.board_rank, record, waits) : 0;
}

void Communicator::Impl::submit(const std::shared_ptr<PendingOp>& operation, uint64_t bytes,
                                Call& call) {
  number(call.op, bytes, call);
  trace::CallRecord its_record = make_record(call);
  device::NvtxRange range;
  if (marks_calls()) range.begin(trace::title(its_record).c_str());
  operation->call = record(call, its_record, /*waits=*/false);
  operation->op = call.op;
  try {
    operation->request = backend_->start(call);
  } catch (...) {
    const std::exception_ptr error = set_broken();
    abandon(operation->call);
    std::rethrow_exception(error);
  }
  operation->place = pending_ops_.insert(pending_ops_.end(), operation);
  note_ends();
  note_pending_ops();
}

// It is not inside while it stages: a copy to a device waits for the device's earlier work, and the
// code that watches that work may have to come in.
std::shared_ptr<PendingOp> Communicator::Impl::launch(const OpArgs& args, const Plan& plan) {
  const at::NoGradGuard no_grad;
  auto operation = std::make_shared<PendingOp>();
  Call call;
  fill(args, plan, call);
  stage(args, plan, call, *operation);
  // A barrier and a copy to the host both need the host to wait.
  operation->ordered = order_ != nullptr && args.op != Op::kBarrier &&
                       std::all_of(operation->keep.begin(), operation->keep.end(),
                                   [this](const at::Tensor& t) { return t.device() == device_; });
  device::Capture* const capture = capture_of(args);
  if (order_ == nullptr) check_host_alone();
  std::string captured;
  if (capture != nullptr) {
    call.note = note_of_captured(call.note, captured);
    operation->capture = capture->id();
  }
  if (order_ != nullptr) call.after = order_->mark();
  const Entry entry(*this);
  throw_if_broken();
  submit(operation, payload(args), call);
  if (capture != nullptr) {
    // No thread watches for the device to finish it.
    for (const at::Tensor& tensor : operation->keep) capture->keep(tensor);
    take_part(*capture, args.site);
  }
  return operation;
}

Communicator::Impl& Communicator::Impl::carrier(const OpArgs& args) {
  if (!host_) return *this;
  const auto hosts = [](const at::Tensor& tensor) { return !tensor.defined() || tensor.is_cpu(); };
  if (!hosts(args.input) || !hosts(args.output)) return *this;
  check_host_call();
  return *host_;
}

void Communicator::Impl::refuse_caller(const char* what, const char* why) {
  throw InvalidArgument(std::string(what) + ": " + why);
}

std::shared_ptr<PendingOp> Communicator::Impl::start(const OpArgs& args) {
  throw_if_broken();
  check_caller(to_string(args.op));
  return launch(args, check(args));
}

void Communicator::Impl::run(const OpArgs& args) {
  if (Impl& carrier = this->carrier(args); &carrier != this) return carrier.run(args);
  throw_if_broken();
  check_caller(to_string(args.op));
  const Plan plan = check(args);
  const auto ready = [this](const at::Tensor& t) {
    return !t.defined() || (t.is_contiguous() && t.device() == device_);
  };
  if (order_ != nullptr || plan.support != Support::kNative || !ready(args.input) ||
      !ready(args.output)) {
    wait(*launch(args, plan), Deadline::after(options_.timeout));
    return;
  }
  check_host_alone();
  const Entry entry(*this);
  throw_if_broken();
  Call call;
  fill(args, plan, call);
  if (args.input.defined()) call.input = data_of(args.input);
  if (args.output.defined()) call.output = mutable_data_of(args.output);
  number(args.op, payload(args), call);
  run_call(call, {&args.input, &args.output});
}

void Communicator::Impl::run_in_place(Op op, const at::Tensor& tensor, ReduceOp reduce, int root,
                                      Site site) {
  if (host_ && tensor.is_cpu()) {
    check_host_call();
    return host_->run_in_place(op, tensor, reduce, root, site);
  }
  const at::ScalarType dtype = tensor.scalar_type();
  const bool as_it_is =
      (native_[static_cast<int>(op)][static_cast<int>(reduce)] & bit(dtype)) != 0 &&
      tensor.layout() == at::kStrided && tensor.device() == device_ && tensor.is_contiguous();
  if (!as_it_is) {
    OpArgs args;
    args.op = op;
    if (op == Op::kAllReduce) args.input = tensor;
    args.output = tensor;
    args.reduce = reduce;
    args.root = root;
    args.site = site;
    return run(args);
  }
  check_host_alone();
  check_caller(to_string(op));
  const Entry entry(*this);
  throw_if_broken();
  Call call;
  call.op = op;
  call.dtype = dtype;
  call.reduce = reduce;
  call.root = root;
  call.count = tensor.numel();
  call.output = mutable_data_of(tensor);
  if (op == Op::kAllReduce) call.input = call.output;
  call.site = site;
  number(op, tensor.nbytes(), call);
  run_call(call, {&tensor});
}

void Communicator::Impl::run_call(Call& call, std::initializer_list<const at::Tensor*> tensors) {
  backend_->show(call);
  trace::CallRecord its_record = make_record(call);
  device::NvtxRange range;
  if (marks_calls()) range.begin(trace::title(its_record).c_str());
  const uint64_t place = record(call, its_record, /*waits=*/true);
  try {
    backend_->run(call, options_.timeout);
  } catch (...) {
    const std::exception_ptr error = set_broken();
    // Some engines access the tensors until the operations have ended.
    pending_ops_.push_back(std::make_shared<PendingOp>());
    pending_ops_.back()->call = place;
    abandon(place);
    for (const at::Tensor* tensor : tensors) pending_ops_.back()->keep.push_back(*tensor);
    std::rethrow_exception(error);
  }
  const uint64_t ended = ticks();
  waited_->add(ended - its_record.begun);
  if (options_.board) options_.board->end(options_.board_rank, place, ended);
  note_ends();
}

void Communicator::Impl::wait(PendingOp& operation, Deadline deadline) {
  const bool captured = !operation.done && orders_capture(operation);
  if (const Entry entry(*this); !operation.done) {
    throw_if_broken();
    check_caller("wait");
    note_ends();
    device::NvtxRange range;
    if (marks_calls()) range.begin(("wait: " + std::string(to_string(operation.op))).c_str());
    const uint64_t begun = ticks();
    if (options_.board && !operation.over && !operation.ordered)
      options_.board->wait(options_.board_rank, operation.call, begun);
    try {
      if (operation.ordered) {
        if (auto tail = operation.request->order(deadline))
          trail(operation, std::move(tail), deadline);
      } else {
        operation.request->wait(deadline);
      }
    } catch (const c10::Error&) {
      if (captured) throw;  // ending the capture is the only effect
      std::rethrow_exception(set_broken());
    } catch (...) {
      std::rethrow_exception(set_broken());
    }
    waited_->add(ticks() - begun);
    complete(operation);
  }
  finish(operation);
}

bool Communicator::Impl::test(PendingOp& operation) {
  if (!operation.done && orders_capture(operation)) {
    wait(operation, Deadline::after(options_.timeout));
    return true;
  }
  if (const Entry entry(*this); !operation.done) {
    throw_if_broken();
    check_caller("test");
    try {
      if (!operation.request->poll()) {
        progress_siblings(this);
        return false;
      }
    } catch (...) {
      std::rethrow_exception(set_broken());
    }
    complete(operation);
  }
  finish(operation);
  return true;
}

void Communicator::Impl::trail(PendingOp& operation, std::shared_ptr<Tail> tail, Deadline deadline,
                               std::chrono::nanoseconds first_for) {
  if (!watch_) {
    watch_ = std::make_unique<DeviceWatch>(
        [this](DeviceWatch::Operation& operation) { return look(operation); });
  }
  watch_->add({.keep = std::move(operation.keep),
               .tail = std::move(tail),
               .request = std::move(operation.request),
               .call = operation.call,
               .deadline = deadline,
               .first_for = first_for});
}

bool Communicator::Impl::look(DeviceWatch::Operation& operation) {
  throw_if_broken();
  int found = kNobody;
  if (!inside_.compare_exchange_strong(found, kSibling, std::memory_order_acq_rel)) return false;
  if (operation.first_for.count() > 0)
    operation.deadline = Deadline::after(std::exchange(operation.first_for, {}));
  bool over = false;
  std::exception_ptr error;
  try {
    over = operation.request->poll();
    // The engine's own error names the late rank.
    if (!over && operation.deadline.expired()) operation.request->wait(operation.deadline);
  } catch (...) {
    error = set_broken();
  }
  inside_.store(kNobody, std::memory_order_release);
  if (error) std::rethrow_exception(error);
  if (over && options_.board) options_.board->end(options_.board_rank, operation.call, ticks());
  return over;
}

void Communicator::Impl::complete(PendingOp& operation) {
  const bool trails = operation.request == nullptr;  // its memory belongs to the watch
  operation.done = true;
  operation.request.reset();
  operation.keep.clear();
  pending_ops_.erase(operation.place);
  note_pending_ops();
  if (options_.board && !trails && !operation.end_noted)
    options_.board->end(options_.board_rank, operation.call, ticks());
}

// Called after complete(), not inside it, because of launch().
void Communicator::Impl::finish(PendingOp& operation) {
  const at::NoGradGuard no_grad;
  if (operation.finish) operation.finish();
  operation.finish = nullptr;
}

Probe Communicator::Impl::probe(int src, int tag) {
  if (host_) return host_->probe(src, tag);
  check_caller("probe");
  const Entry entry(*this);
  throw_if_broken();
  if (!capabilities().probe) {
    throw InvalidArgument("backend " + capabilities().backend +
                          " cannot say which rank has sent a message; name the source");
  }
  return backend_->probe(src, tag);
}

}  // namespace lockstep::inline v0
