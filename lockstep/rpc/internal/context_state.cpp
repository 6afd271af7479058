#include "lockstep/rpc/internal/context_state.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <tuple>
#include <unordered_set>

#include "lockstep/core/errors.h"
#include "lockstep/device/stream.h"
#include "lockstep/hooks/autograd_node.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

// The pass that runs in this thread, with the answers that it has to wait for.
struct Pass {
  std::vector<Future<PassResult>> answers;
  PassOptions options;
};
Pass*& this_pass() {
  thread_local Pass* pass = nullptr;
  return pass;
}

// The leaves of the graph of `outputs`.
std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> leaves;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs)
    visit(torch::autograd::impl::gradient_edge(output).function.get());
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
      leaves.push_back(leaf->variable);
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return leaves;
}

}  // namespace

// Gradients between two nodes, each set under a tensor, because passes may run concurrently.
class Gathered {
 public:
  at::Tensor put(torch::autograd::variable_list gradients) {
    const auto arriving = point_of(gradients);
    const MutexLock lock(mutex_);
    waiting_.emplace(++last_, std::pair(std::move(gradients), arriving));
    return at::scalar_tensor(static_cast<double>(last_), at::kDouble);
  }
  torch::autograd::variable_list take(const at::Tensor& which) {
    MutexLock lock(mutex_);
    const auto one = waiting_.extract(static_cast<int64_t>(which.item<double>()));
    if (one.empty()) throw DataError("gradients of rpc are not there");
    lock.unlock();
    one.mapped().second->come_here();
    return one.mapped().first;
  }

 private:
  Mutex mutex_;
  int64_t last_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::pair<torch::autograd::variable_list, std::shared_ptr<const Arriving>>>
      waiting_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Autograd runs a node with gradients of a device on that device's only thread, and the node below
// waits for another process, whose pass may need that thread of this process. This node therefore
// takes the gradients, and the one below, given a CPU tensor, runs on the thread of backward().
class GatherGradients final : public torch::autograd::Node {
 public:
  GatherGradients(uint64_t sequence, torch::autograd::Edge to, std::shared_ptr<Gathered> gathered)
      : Node(sequence, {std::move(to)}), gathered_(std::move(gathered)) {}
  std::string name() const override { return "lockstep::rpc::GatherGradients"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    // Autograd has ordered all of them, on any device, before the stream that this node runs on.
    if (const auto own = stream())
      for (const at::Tensor& gradient : gradients)
        if (gradient.defined() && gradient.device().type() == own->device_type())
          device::order(*own, device::current_stream(gradient.device()));
    return {gathered_->put(std::move(gradients))};
  }

 private:
  const std::shared_ptr<Gathered> gathered_;
};

// The origin of a call's results: in backward it maps their gradients to those of the sent tensors.
class RemoteBackward final : public torch::autograd::Node {
 public:
  RemoteBackward(torch::autograd::edge_list edges, std::shared_ptr<SentTensors> sent,
                 std::shared_ptr<Gathered> gathered)
      : Node(sent->sequence, std::move(edges)),
        sent_(std::move(sent)),
        gathered_(std::move(gathered)) {}
  std::string name() const override { return "lockstep::rpc::RemoteBackward"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const auto others = sent_->context->others_.lock();
    if (!others) throw Cancelled("the agent of a call that is to run backward was shut down");
    if (gathered_) gradients = gathered_->take(gradients.at(0));
    const Pass* pass = this_pass();
    if (!pass)
      throw InvalidArgument("what came from '" + sent_->peer +
                            "' in an rpc::AutogradContext runs backward by the context's "
                            "backward(), not by the tensor's");
    const auto answer =
        others->backward(sent_->peer, sent_->context->id, sent_->recording.path, pass->options,
                         std::vector<at::Tensor>(gradients.begin(), gradients.end()));
    torch::autograd::variable_list result(1 + sent_->tensors.size());
    sent_->context->wait_for(answer);
    if (sent_->tensors.empty()) return result;
    const PassResult& back = answer.get();
    if (back.gradients.size() != sent_->tensors.size())
      throw DataError("'" + sent_->peer + "' answered with gradients of another number of tensors");
    std::copy(back.gradients.begin(), back.gradients.end(), result.begin() + 1);
    return result;
  }

 private:
  const std::shared_ptr<SentTensors> sent_;
  const std::shared_ptr<Gathered> gathered_;  // null: the gradients are its inputs
};

ContextState::ContextState(ContextId id, std::weak_ptr<ContextPeers> others)
    : id(id), others_(std::move(others)), root_(at::zeros({}).requires_grad_(true)) {}

std::shared_ptr<SentTensors> ContextState::sent(const Tensors& tensors, const std::string& peer,
                                                CallPath path) {
  if (!at::GradMode::is_enabled()) return nullptr;
  auto sent = std::make_shared<SentTensors>();
  sent->context = shared_from_this();
  sent->recording.context = id;
  sent->recording.path = std::move(path);
  sent->sequence = at::sequence_number::get_and_increment();
  sent->peer = peer;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].requires_grad()) continue;
    sent->recording.gradients.push_back(static_cast<uint32_t>(i));
    sent->tensors.push_back(tensors[i]);
  }
  const MutexLock lock(mutex_);
  if (ended_) return nullptr;
  peers_.insert(peer);
  if (!sent->tensors.empty()) sent_[sent->recording.path] = sent;
  return sent;
}

void ContextState::attach(const std::shared_ptr<SentTensors>& sent, Tensors& received,
                          const std::vector<uint32_t>& places) {
  if (places.empty()) return;
  torch::autograd::edge_list edges{torch::autograd::impl::gradient_edge(sent->context->root_)};
  for (const at::Tensor& tensor : sent->tensors)
    edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  bool on_device = false;
  for (const uint32_t place : places) {
    if (place >= received.size() ||
        !torch::autograd::isDifferentiableType(received[place].scalar_type()))
      throw DataError("an answer of rpc names a tensor that cannot have a gradient");
    on_device = on_device || !received[place].is_cpu();
  }
  const auto gathered = on_device ? std::make_shared<Gathered>() : nullptr;
  auto node = hooks::make_node<RemoteBackward>(std::move(edges), sent, gathered);
  if (on_device) {
    node->add_input_metadata(at::zeros({}, at::kDouble));
    node =
        hooks::make_node<GatherGradients>(sent->sequence, torch::autograd::Edge(node, 0), gathered);
  }
  for (const uint32_t place : places) torch::autograd::set_history(received[place], node);
}

void ContextState::received(const Recording& recording, const DeviceWay& way, Tensors& tensors,
                            const std::string& from) {
  const MutexLock lock(mutex_);
  if (ended_) return;
  const auto [at, fresh] = records_.try_emplace(recording.path);
  if (!fresh)
    throw DataError("a call of rpc is recorded as another one, of '" + at->second.from + "'");
  Record& kept = at->second;
  kept.from = from;
  kept.way = way.reversed();
  for (const uint32_t place : recording.gradients) {
    if (!torch::autograd::isDifferentiableType(tensors[place].scalar_type()))
      throw DataError("a message of rpc wants a gradient of a tensor that has none");
    tensors[place].requires_grad_(true);
    origins_[tensors[place].unsafeGetTensorImpl()] = {&at->first, kept.leaves.size()};
    kept.leaves.push_back(tensors[place]);
  }
}

std::vector<uint32_t> ContextState::returned(const Recording& recording, const Tensors& results) {
  std::vector<uint32_t> places;
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].requires_grad()) continue;
    places.push_back(static_cast<uint32_t>(i));
    outputs.push_back(results[i]);
  }
  if (places.empty()) return places;
  const MutexLock lock(mutex_);
  if (ended_) return {};
  records_.at(recording.path).outputs = std::move(outputs);
  return places;
}

// A process learns of a round by its first pass. All calls of forward have arrived by then. Whether
// a call takes part in the round shows only when its pass arrives, so gradients wait for each that
// might.
void ContextState::begin_round(uint64_t round) {
  if (round == round_) return;
  round_ = round;
  gradients_.settle();
  unfinished_.clear();
  for (const auto& [path, record] : records_)
    if (!record.outputs.empty()) unfinished_.insert(path);
}

void ContextState::wait_for(Future<PassResult> answer) {
  this_pass()->answers.push_back(std::move(answer));
}

Future<PassResult> ContextState::run(std::vector<at::Tensor> outputs,
                                     std::vector<at::Tensor> gradients, const PassOptions& options,
                                     const CallPath& own) {
  Pass pass;
  pass.options = options;
  {
    const MutexLock lock(mutex_);
    begin_round(options.round);
  }
  PassResult result;
  std::vector<at::Tensor> leaves = leaves_of(outputs);
  torch::autograd::variable_list computed;
  struct Turn {
    explicit Turn(Pass* pass) : outer(std::exchange(this_pass(), pass)) {}
    ~Turn() { this_pass() = outer; }
    Pass* outer;
  };
  if (!leaves.empty()) {
    const Turn turn(&pass);
    computed = torch::autograd::grad(outputs, leaves, gradients, options.retain_graph,
                                     /*create_graph=*/false,
                                     /*allow_unused=*/true);
  }
  struct Back {
    std::string to;
    DeviceWay way;
    Late late;
  };
  std::vector<Back> late;
  {
    const MutexLock lock(mutex_);
    const auto record = own.empty() ? records_.end() : records_.find(own);
    if (record != records_.end()) result.gradients.resize(record->second.leaves.size());
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!computed[i].defined() || leaves[i].is_same(root_)) continue;
      const auto* impl = leaves[i].unsafeGetTensorImpl();
      if (const auto origin = origins_.find(impl); origin != origins_.end()) {
        const auto& [path, place] = origin->second;
        if (record != records_.end() && path == &record->first)
          result.gradients[place] = computed[i];
        else
          late.push_back({records_.at(*path).from,
                          records_.at(*path).way,
                          {.by = own,
                           .sent = *path,
                           .place = static_cast<int64_t>(place),
                           .tensor = {},
                           .gradient = computed[i]}});
        continue;
      }
      hand_to_default(computed[i]);
      gradients_.add({options.round, own}, leaves[i], computed[i]);
    }
    if (!options.retain_graph && record != records_.end()) record->second.outputs.clear();
    unfinished_.erase(own);
    if (unfinished_.empty())
      gradients_.settle();
    else
      gradients_.settle_before({options.round, *unfinished_.rbegin()});
  }
  const auto others = others_.lock();
  if (!others) throw Cancelled("the agent was shut down");
  for (auto& [to, way, one] : late) {
    ++result.late;
    pass.answers.push_back(others->late(to, way, id, one.sent, one.place, one.by, one.gradient));
  }
  // Answers when all others have answered.
  struct Rest {
    Promise<PassResult> promise;
    PassResult result;
    std::atomic<size_t> open;
    Mutex mutex;
    std::exception_ptr error;
  };
  auto rest = std::make_shared<Rest>();
  rest->result = std::move(result);
  rest->open = pass.answers.size() + 1;
  const auto close = [rest] {
    if (--rest->open > 0) return;
    if (rest->error)
      rest->promise.set_error(rest->error);
    else
      rest->promise.set_value(std::move(rest->result));
  };
  const Future<PassResult> all = rest->promise.future();
  for (const Future<PassResult>& answer : pass.answers)
    answer.when_done([rest, close](const Future<PassResult>& done) {
      {
        const MutexLock lock(rest->mutex);
        if (done.error())
          rest->error = done.error();
        else
          rest->result.late += done.get().late;
      }
      close();
    });
  close();
  return all;
}

Future<PassResult> ContextState::run_record(const CallPath& path, const std::string& from,
                                            std::vector<at::Tensor> gradients,
                                            const PassOptions& options) {
  std::vector<at::Tensor> outputs, wanted;
  {
    const MutexLock lock(mutex_);
    const auto found = records_.find(path);
    if (found == records_.end() || found->second.from != from ||
        found->second.outputs.size() != gradients.size())
      throw InvalidArgument(
          "the call's part of the graph is not here: it ran backward already (retain_graph), or "
          "its context ended");
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      if (gradients[i].sizes() != found->second.outputs[i].sizes())
        throw DataError("a gradient of rpc has another shape than what it is of");
      if (gradients[i].device() != found->second.outputs[i].device())
        throw DataError("a gradient of rpc is on another device than what it is of");
      outputs.push_back(found->second.outputs[i]);
      wanted.push_back(std::move(gradients[i]));
    }
  }
  return run(std::move(outputs), std::move(wanted), options, path);
}

void ContextState::late(const CallPath& sent, int64_t place, const CallPath& by,
                        at::Tensor gradient) {
  const MutexLock lock(mutex_);
  const auto found = sent_.find(sent);
  if (found == sent_.end() || place < 0 ||
      static_cast<size_t>(place) >= found->second->tensors.size())
    throw DataError("a late gradient of rpc is of no tensor that was sent");
  const at::Tensor& of = found->second->tensors[static_cast<size_t>(place)];
  if (!gradient.defined() || gradient.sizes() != of.sizes())
    throw DataError("a late gradient of rpc has another shape than what it is of");
  if (gradient.device() != of.device())
    throw DataError("a late gradient of rpc is on another device than what it is of");
  late_.push_back(
      {.by = by, .sent = sent, .place = place, .tensor = of, .gradient = std::move(gradient)});
}

Future<PassResult> ContextState::run_late(const PassOptions& options) {
  std::vector<at::Tensor> outputs, gradients;
  {
    const MutexLock lock(mutex_);
    std::vector<Late> late = std::exchange(late_, {});
    // Sorts them, whatever their order of arrival, as GradientSums does.
    std::stable_sort(late.begin(), late.end(), [](const Late& a, const Late& b) {
      return std::tie(a.by, a.sent, a.place) > std::tie(b.by, b.sent, b.place);
    });
    for (Late& one : late) {
      take_from_default(one.gradient);  // it came through another thread
      outputs.push_back(std::move(one.tensor));
      gradients.push_back(std::move(one.gradient));
    }
  }
  return run(std::move(outputs), std::move(gradients), options);
}

at::Tensor ContextState::gradient_of(const at::Tensor& parameter) {
  const MutexLock lock(mutex_);
  gradients_.settle();
  at::Tensor gradient = gradients_.of(parameter);
  take_from_default(gradient);
  return gradient;
}

std::vector<std::pair<at::Tensor, at::Tensor>> ContextState::gradients() {
  const MutexLock lock(mutex_);
  gradients_.settle();
  auto all = gradients_.all();
  for (const auto& [parameter, gradient] : all) take_from_default(gradient);
  return all;
}

std::set<std::string> ContextState::peers() const {
  const MutexLock lock(mutex_);
  return peers_;
}

void ContextState::clear() noexcept {
  // Destroyed without the lock, because a graph may hold any object.
  decltype(records_) records;
  decltype(origins_) origins;
  decltype(sent_) sent;
  GradientSums gradients;
  decltype(late_) late;
  const MutexLock lock(mutex_);
  ended_ = true;
  records.swap(records_);
  origins.swap(origins_);
  sent.swap(sent_);
  std::swap(gradients, gradients_);
  late.swap(late_);
}

CallPath Recorder::next_call() {
  if (path_.size() >= kDeepestCall)
    throw InvalidArgument("calls of an rpc::AutogradContext nest deeper than " +
                          std::to_string(kDeepestCall));
  CallPath path = path_;
  path.push_back(calls_++);
  return path;
}

CallContext CallContext::continued() const {
  CallContext other = *this;
  if (autograd)
    other.autograd = std::make_shared<Recorder>(autograd->context, autograd->next_call());
  return other;
}

}  // namespace lockstep::inline v0::rpc::internal
