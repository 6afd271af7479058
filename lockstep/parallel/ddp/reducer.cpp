#include "lockstep/parallel/ddp/reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"

namespace lockstep {

using torch::autograd::get_current_graph_task_id;
constexpr int kNoGraphTask = -1;

// Owned by the Reducer; hooks hold it weakly, a backward under way strongly.
class Reducer::State : public std::enable_shared_from_this<Reducer::State> {
 public:
  State(NamedTensors parameters, Communicator comm, flat::BucketSizes sizes,
        std::shared_ptr<CommHook> hook, Unused unused);
  void install_hooks();
  void forget_failed_backward();
  void count_forward() { ++forwards_; }
  void accumulate(int64_t steps);
  bool communicates() const { return silencers_ == 0 && quiet_backwards_ + 1 >= accumulate_; }
  void silence(int by) { silencers_ += by; }
  void arm(bool outermost);
  void gradient_arrived(size_t index);
  size_t bucket_count() const { return buckets_.size(); }

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    at::Tensor view;  // of its bucket, in the parameter's shape
    size_t bucket = 0;
    bool arrived = false;  // in this backward
    bool earlier = false;  // in a quiet one since the last that communicated
    at::Tensor before;     // its gradient before the reduction, if it was not used but had one
    decltype(torch::autograd::impl::grad_accumulator(
        at::Tensor())) accumulator;  // the tensor holds it weakly
  };
  struct Bucket {
    at::Tensor flat;
    std::vector<size_t> parameters;
    std::string note;  // of the reduction under way
    size_t missing = 0;
    Work work;
  };

  void put_into_bucket(Parameter& parameter);
  void start_ready_buckets();
  void prepare_unused();
  void finish();
  void finish_quietly();
  void settle();
  void reset();

  std::string note_of(const std::string& what) const;

  Communicator comm_;
  uint64_t id_;            // of this reducer among the communicator's: equal on all ranks
  uint64_t forwards_ = 0;  // counted ones
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::shared_ptr<CommHook> hook_;
  Unused unused_;
  std::vector<GradBucket> hooked_;  // for the hook
  at::Tensor used_;                 // one bit a parameter
  size_t started_ = 0;              // buckets whose reduction was started
  int task_ = kNoGraphTask;         // the graph task at whose end finish() runs
  bool armed_ = false;              // finish() will run at the end of this backward
  bool quiet_ = false;              // this backward does not communicate
  int silencers_ = 0;               // NoSync guards that live
  int64_t accumulate_ = 1;          // of so many backwards the last communicates
  int64_t quiet_backwards_ = 0;  // since the last that communicated, without those under a NoSync
};

namespace {

// A stretch of `flat` in another shape. Not narrow().view(): Optimizer::zero_grad(false) calls
// detach_(), which autograd forbids on what it knows as a view.
at::Tensor window(const at::Tensor& flat, int64_t offset, at::IntArrayRef shape) {
  return at::empty({0}, flat.options()).set_(flat.storage(), offset, shape);
}

// Lives as long as the text.
CallNote call_note(const std::string& text) {
  return {std::hash<std::string>()(text) | 1, text.c_str()};
}

class ArrivalHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit ArrivalHook(std::function<void()> arrived) : arrived_(std::move(arrived)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    arrived_();
    return outputs;
  }

 private:
  std::function<void()> arrived_;
};

}  // namespace

Reducer::State::State(NamedTensors parameters, Communicator comm, flat::BucketSizes sizes,
                      std::shared_ptr<CommHook> hook, Unused unused)
    : comm_(std::move(comm)),
      id_(comm_.stats().collectives),
      hook_(std::move(hook)),
      unused_(unused) {
  std::vector<flat::TensorSpec> specs;
  for (auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad() || !tensor.is_leaf())
      throw InvalidArgument("parameter '" + name + "' takes no gradient of its own");
    specs.push_back({tensor.numel(), tensor.scalar_type()});
    parameters_.push_back(
        {.name = name, .tensor = tensor, .view = {}, .before = {}, .accumulator = {}});
  }
  for (const flat::Bucket& plan : flat::plan_buckets(specs, sizes)) {
    Bucket bucket;
    bucket.flat = comm_.symmetric_empty({plan.numel}, plan.dtype).zero_();
    for (const auto& slot : plan.slots) {
      Parameter& parameter = parameters_[slot.tensor];
      parameter.view = window(bucket.flat, slot.offset, parameter.tensor.sizes());
      parameter.bucket = buckets_.size();
      bucket.parameters.push_back(slot.tensor);
    }
    bucket.missing = bucket.parameters.size();
    if (hook_) {
      GradBucket& shown = hooked_.emplace_back(GradBucket{buckets_.size(), bucket.flat, {}});
      for (const size_t i : bucket.parameters) shown.gradients.push_back(parameters_[i].view);
    }
    buckets_.push_back(std::move(bucket));
  }
  if (hook_) hook_->prepare(comm_, hooked_);
  used_ = at::zeros({static_cast<int64_t>((parameters_.size() + 7) / 8)}, at::kByte);
}

void Reducer::State::install_hooks() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    parameter.accumulator->add_post_hook(
        std::make_unique<ArrivalHook>([weak = weak_from_this(), i] {
          if (const auto state = weak.lock()) state->gradient_arrived(i);
        }));
  }
}

// A backward that threw outside of our hooks never came to finish(). Called where no backward runs.
void Reducer::State::forget_failed_backward() {
  if (armed_ && get_current_graph_task_id() == kNoGraphTask) settle();
}

// The callback belongs to the graph task that runs now. It is queued by the first event of a
// backward: the output's gradient, which always comes in the outermost task, or else a parameter's,
// which may come in a nested one.
void Reducer::State::arm(bool outermost) {
  const int task = get_current_graph_task_id();
  if (armed_ && outermost && task != task_) settle();  // left over from a backward that threw
  if (armed_) return;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [state = shared_from_this()] { state->finish(); });
  armed_ = true;
  quiet_ = !communicates();
  task_ = task;
}

void Reducer::State::accumulate(int64_t steps) {
  if (steps < 1) {
    throw InvalidArgument("accumulate(" + std::to_string(steps) +
                          "): give 1 or more backwards, of which the last communicates");
  }
  accumulate_ = steps;
  quiet_backwards_ = 0;
}

void Reducer::State::gradient_arrived(size_t index) {
  try {
    arm(/*outermost=*/false);
    Parameter& parameter = parameters_[index];
    if (quiet_) {
      parameter.earlier = true;
      return;
    }
    if (parameter.arrived) {
      throw InvalidArgument("the gradient of parameter '" + parameter.name +
                            "' arrived twice in one backward; its bucket may be reduced already. "
                            "Use it in one checkpointed part only");
    }
    parameter.arrived = true;
    put_into_bucket(parameter);
    --buckets_[parameter.bucket].missing;
    start_ready_buckets();
    comm_.progress();
  } catch (...) {
    reset();
    throw;
  }
}

// zero_grad(), set to none or not, before or after forward, and user code may have put another
// tensor in the view's place.
void Reducer::State::put_into_bucket(Parameter& parameter) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (gradient.is_sparse()) {
    throw InvalidArgument("parameter '" + parameter.name +
                          "' has a sparse gradient, which DistributedDataParallel does not reduce; "
                          "make the embedding dense");
  }
  const bool in_place = gradient.is_alias_of(parameter.view) &&
                        gradient.data_ptr() == parameter.view.data_ptr() &&
                        gradient.strides() == parameter.view.strides();
  if (in_place) return;
  parameter.view.copy_(gradient);
  gradient = parameter.view;
}

void Reducer::State::start_ready_buckets() {
  while (started_ < buckets_.size() && buckets_[started_].missing == 0) {
    Bucket& bucket = buckets_[started_];
    bucket.note = note_of("bucket " + std::to_string(started_));
    const at::NoGradGuard no_grad;
    bucket.work = hook_ ? hook_->start(comm_, hooked_[started_], call_note(bucket.note))
                        : comm_.iall_reduce(bucket.flat, ReduceOp::kAvg, call_note(bucket.note));
    ++started_;
  }
}

// Says which of the reducer's calls one is: ranks out of step get Mismatch, though operation and
// shape may be the same.
std::string Reducer::State::note_of(const std::string& what) const {
  return what + " of forward " + std::to_string(forwards_) + ", reducer " + std::to_string(id_);
}

// Every parameter that got no gradient here still takes part: another rank may have used it.
void Reducer::State::prepare_unused() {
  const at::NoGradGuard no_grad;
  used_.zero_();
  auto* bits = used_.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const bool defined = parameter.tensor.grad().defined();
    const bool used = parameter.arrived || (parameter.earlier && defined);
    if (used) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | (1u << (i % 8)));
    if (parameter.arrived) continue;
    if (defined) {
      put_into_bucket(parameter);
      if (!used) parameter.before = parameter.view.clone();
    } else {
      parameter.view.zero_();
    }
    --buckets_[parameter.bucket].missing;
  }
}

// What this rank has used is kept for the backward that communicates.
void Reducer::State::finish_quietly() {
  if (silencers_ == 0) ++quiet_backwards_;
  armed_ = false;
}

void Reducer::State::finish() {
  if (quiet_) return finish_quietly();
  try {
    prepare_unused();
    start_ready_buckets();
    const std::string note = note_of("used parameters");
    comm_.iall_reduce(used_, ReduceOp::kBitOr, call_note(note)).wait();
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      buckets_[i].work.wait();
      if (hook_) hook_->finish(comm_, hooked_[i], call_note(buckets_[i].note));
    }
    const auto* bits = used_.const_data_ptr<uint8_t>();
    std::string missing;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      const bool used_somewhere = (bits[i / 8] >> (i % 8) & 1) != 0;
      if (used_somewhere) {
        parameter.tensor.mutable_grad() = parameter.view;
        continue;
      }
      if (parameter.before.defined())
        parameter.view.copy_(parameter.before);
      else if (unused_ == Unused::kZero)
        parameter.tensor.mutable_grad() = parameter.view.zero_();
      if (unused_ == Unused::kThrow)
        missing += (missing.empty() ? "'" : ", '") + parameter.name + "'";
    }
    if (!missing.empty()) {
      throw InvalidArgument("no rank's backward reached " + missing +
                            "; leave it out of the loss on purpose with Unused::kLeave, or mend "
                            "the model");
    }
  } catch (...) {
    reset();
    throw;
  }
  quiet_backwards_ = 0;
  reset();
}

// Ends what a backward that threw had started: its buckets may not be written while they are being
// reduced.
void Reducer::State::settle() {
  for (size_t i = 0; i < started_; ++i) buckets_[i].work.wait();
  reset();
}

void Reducer::State::reset() {
  for (Parameter& parameter : parameters_) {
    parameter.arrived = false;
    parameter.earlier = false;
    parameter.before.reset();
  }
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.parameters.size();
    bucket.work = Work();
  }
  started_ = 0;
  armed_ = false;
}

Reducer::Reducer(NamedTensors parameters, Communicator comm, flat::BucketSizes sizes,
                 std::shared_ptr<CommHook> hook, Unused unused)
    : state_(std::make_shared<State>(std::move(parameters), std::move(comm), sizes, std::move(hook),
                                     unused)) {
  state_->install_hooks();
}

Reducer::~Reducer() = default;

void Reducer::before_forward(bool counts) {
  state_->forget_failed_backward();
  if (counts && at::GradMode::is_enabled()) state_->count_forward();
}

void Reducer::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return;
  output.register_hook([weak = std::weak_ptr<State>(state_)](const at::Tensor&) {
    if (const auto state = weak.lock()) state->arm(/*outermost=*/true);
  });
}

void Reducer::accumulate(int64_t steps) {
  state_->accumulate(steps);
}

bool Reducer::communicates() const {
  return state_->communicates();
}

size_t Reducer::bucket_count() const {
  return state_->bucket_count();
}

NoSync::NoSync(Reducer& reducer) : state_(reducer.state_) {
  state_->silence(1);
}

NoSync::~NoSync() {
  if (state_) state_->silence(-1);
}

}  // namespace lockstep
