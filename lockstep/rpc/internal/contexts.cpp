#include "lockstep/rpc/internal/contexts.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_set>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/internal/core.h"

namespace lockstep::rpc::internal {
namespace {

// The pass that runs in this thread: the answers that it must not end before.
struct Pass {
  std::vector<Future<PassResult>> answers;
  bool retain_graph = false;
};
Pass*& this_pass() {
  thread_local Pass* pass = nullptr;
  return pass;
}

// The leaves that the graph of `outputs` leads to.
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

// Where a call's results come from: its inputs are their gradients, its outputs (in backward) those of the tensors that were sent.
class RemoteBackward final : public torch::autograd::Node {
 public:
  RemoteBackward(torch::autograd::edge_list edges, std::shared_ptr<SentTensors> sent)
      : Node(std::move(edges)), sent_(std::move(sent)) {}
  std::string name() const override { return "lockstep::rpc::RemoteBackward"; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const auto core = sent_->context->core_.lock();
    if (!core) throw Cancelled("the agent of a call that is to run backward was shut down");
    const Pass* pass = this_pass();
    if (!pass)
      throw InvalidArgument("what came from '" + sent_->peer +
                            "' in an rpc::AutogradContext runs backward by the context's "
                            "backward(), not by the tensor's");
    const auto answer = call_agent<PassResult>(
        *core, sent_->peer, "rpc.backward", How::kSync, sent_->context->id, sent_->recording.token,
        pass->retain_graph, std::vector<at::Tensor>(gradients.begin(), gradients.end()));
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
};

ContextState::ContextState(ContextId id, std::weak_ptr<Core> core)
    : id(id), core_(std::move(core)), root_(at::zeros({}).requires_grad_(true)) {}

std::shared_ptr<SentTensors> ContextState::sent(const Tensors& tensors, const std::string& peer) {
  if (!at::GradMode::is_enabled()) return nullptr;
  const auto core = core_.lock();
  if (!core) return nullptr;
  auto sent = std::make_shared<SentTensors>();
  sent->context = shared_from_this();
  sent->recording.context = id;
  sent->recording.token = core->next_number();
  sent->peer = peer;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].requires_grad()) continue;
    sent->recording.gradients.push_back(static_cast<uint32_t>(i));
    sent->tensors.push_back(tensors[i]);
  }
  const MutexLock lock(mutex_);
  if (ended_) return nullptr;
  peers_.insert(peer);
  if (!sent->tensors.empty()) sent_[sent->recording.token] = sent;
  return sent;
}

void ContextState::attach(const std::shared_ptr<SentTensors>& sent, Tensors& received,
                          const std::vector<uint32_t>& places) {
  if (places.empty()) return;
  torch::autograd::edge_list edges{torch::autograd::impl::gradient_edge(sent->context->root_)};
  for (const at::Tensor& tensor : sent->tensors)
    edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  const auto node = c10::make_intrusive<RemoteBackward>(std::move(edges), sent);
  for (const uint32_t place : places) {
    if (place >= received.size() ||
        !torch::autograd::isDifferentiableType(received[place].scalar_type()))
      throw DataError("an answer of rpc names a tensor that cannot have a gradient");
    torch::autograd::set_history(received[place], node);
  }
}

void ContextState::received(const Recording& recording, Tensors& tensors, const std::string& from) {
  const RecordId record{from, recording.token};
  const MutexLock lock(mutex_);
  if (ended_) return;
  Record& kept = records_[record];
  for (const uint32_t place : recording.gradients) {
    if (!torch::autograd::isDifferentiableType(tensors[place].scalar_type()))
      throw DataError("a message of rpc wants a gradient of a tensor that has none");
    tensors[place].requires_grad_(true);
    origins_[tensors[place].unsafeGetTensorImpl()] = {record, kept.leaves.size()};
    kept.leaves.push_back(tensors[place]);
  }
}

std::vector<uint32_t> ContextState::returned(const Recording& recording, const Tensors& results,
                                             const std::string& from) {
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
  records_[{from, recording.token}].outputs = std::move(outputs);
  return places;
}

void ContextState::wait_for(Future<PassResult> answer) {
  this_pass()->answers.push_back(std::move(answer));
}

Future<PassResult> ContextState::run(std::vector<at::Tensor> outputs,
                                     std::vector<at::Tensor> gradients, bool retain_graph,
                                     uint64_t own_token, const std::string& from) {
  Pass pass;
  pass.retain_graph = retain_graph;
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
    computed =
        torch::autograd::grad(outputs, leaves, gradients, retain_graph, /*create_graph=*/false,
                              /*allow_unused=*/true);
  }
  std::vector<std::pair<RecordId, std::pair<size_t, at::Tensor>>> late;
  {
    const at::NoGradGuard no_grad;
    const MutexLock lock(mutex_);
    if (const auto own = records_.find({from, own_token}); own_token && own != records_.end())
      result.gradients.resize(own->second.leaves.size());
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!computed[i].defined() || leaves[i].is_same(root_)) continue;
      const auto* impl = leaves[i].unsafeGetTensorImpl();
      if (const auto origin = origins_.find(impl); origin != origins_.end()) {
        if (origin->second.record == RecordId{from, own_token})
          result.gradients[origin->second.place] = computed[i];
        else
          late.push_back({origin->second.record, {origin->second.place, computed[i]}});
        continue;
      }
      auto& [parameter, sum] = gradients_[impl];
      parameter = leaves[i];
      sum = sum.defined() ? sum + computed[i] : computed[i];
    }
    if (!retain_graph && own_token) {
      const auto own = records_.find({from, own_token});
      if (own != records_.end()) own->second.outputs.clear();
    }
  }
  const auto core = core_.lock();
  if (!core) throw Cancelled("the agent was shut down");
  for (auto& [record, gradient] : late) {
    ++result.late;
    pass.answers.push_back(
        call_agent<PassResult>(*core, record.first, "rpc.late", How::kAsync, id, record.second,
                               static_cast<int64_t>(gradient.first), gradient.second));
  }
  // The answer comes when all others have.
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

Future<PassResult> ContextState::run_record(uint64_t token, const std::string& from,
                                            std::vector<at::Tensor> gradients, bool retain_graph) {
  std::vector<at::Tensor> outputs, wanted;
  {
    const MutexLock lock(mutex_);
    const auto found = records_.find({from, token});
    if (found == records_.end() || found->second.outputs.size() != gradients.size())
      throw InvalidArgument(
          "the call's part of the graph is not here: it ran backward already (retain_graph), or "
          "its context ended");
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      if (gradients[i].sizes() != found->second.outputs[i].sizes())
        throw DataError("a gradient of rpc has another shape than what it is of");
      outputs.push_back(found->second.outputs[i]);
      wanted.push_back(std::move(gradients[i]));
    }
  }
  return run(std::move(outputs), std::move(wanted), retain_graph, token, from);
}

void ContextState::late(uint64_t token, int64_t place, at::Tensor gradient) {
  const MutexLock lock(mutex_);
  const auto found = sent_.find(token);
  if (found == sent_.end() || place < 0 ||
      static_cast<size_t>(place) >= found->second->tensors.size())
    throw DataError("a late gradient of rpc is of no tensor that was sent");
  late_.emplace_back(found->second->tensors[static_cast<size_t>(place)], std::move(gradient));
}

Future<PassResult> ContextState::run_late(bool retain_graph) {
  std::vector<at::Tensor> outputs, gradients;
  {
    const MutexLock lock(mutex_);
    for (auto& [tensor, gradient] : std::exchange(late_, {})) {
      outputs.push_back(tensor);
      gradients.push_back(std::move(gradient));
    }
  }
  return run(std::move(outputs), std::move(gradients), retain_graph, 0, "");
}

at::Tensor ContextState::gradient_of(const at::Tensor& parameter) const {
  const MutexLock lock(mutex_);
  const auto found = gradients_.find(parameter.unsafeGetTensorImpl());
  return found == gradients_.end() ? at::Tensor() : found->second.second;
}

std::vector<std::pair<at::Tensor, at::Tensor>> ContextState::gradients() const {
  const MutexLock lock(mutex_);
  std::vector<std::pair<at::Tensor, at::Tensor>> all;
  for (const auto& [impl, pair] : gradients_) all.push_back(pair);
  return all;
}

std::set<std::string> ContextState::peers() const {
  const MutexLock lock(mutex_);
  return peers_;
}

void ContextState::clear() noexcept {
  // Destroyed without the lock: a graph may hold anything.
  decltype(records_) records;
  decltype(origins_) origins;
  decltype(sent_) sent;
  decltype(gradients_) gradients;
  decltype(late_) late;
  const MutexLock lock(mutex_);
  ended_ = true;
  records.swap(records_);
  origins.swap(origins_);
  sent.swap(sent_);
  gradients.swap(gradients_);
  late.swap(late_);
}

Contexts::~Contexts() {
  for (auto& [id, part] : contexts_) part.state->clear();
}

std::shared_ptr<ContextState> Contexts::find_or_make(ContextId id, uint64_t caller,
                                                     const std::weak_ptr<Core>& core) {
  const MutexLock lock(mutex_);
  if (ended_.contains(id)) return nullptr;
  Part& part = contexts_[id];
  if (!part.state) part.state = std::make_shared<ContextState>(id, core);
  part.callers.insert(caller);
  return part.state;
}

std::shared_ptr<ContextState> Contexts::find(ContextId id) const {
  const MutexLock lock(mutex_);
  const auto found = contexts_.find(id);
  return found == contexts_.end() ? nullptr : found->second.state;
}

std::set<std::string> Contexts::release(ContextId id) {
  std::shared_ptr<ContextState> gone;
  {
    const MutexLock lock(mutex_);
    if (ended_.insert(id).second) ended_in_order_.push_back(id);
    if (ended_in_order_.size() > kEnded) {
      ended_.erase(ended_in_order_.front());
      ended_in_order_.pop_front();
    }
    const auto found = contexts_.find(id);
    if (found == contexts_.end()) return {};
    gone = std::move(found->second.state);
    contexts_.erase(found);
  }
  gone->clear();  // nobody is added to its peers afterwards
  return gone->peers();
}

std::vector<ContextId> Contexts::ending_with(uint64_t process) {
  std::vector<ContextId> ending;
  const MutexLock lock(mutex_);
  for (auto& [id, part] : contexts_) {
    part.callers.erase(process);
    if (id.maker == process || part.callers.empty()) ending.push_back(id);
  }
  return ending;
}

size_t Contexts::size() const {
  const MutexLock lock(mutex_);
  return contexts_.size();
}

}  // namespace lockstep::rpc::internal
