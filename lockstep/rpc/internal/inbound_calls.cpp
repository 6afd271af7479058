#include "lockstep/rpc/internal/inbound_calls.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <string_view>

#include "lockstep/core/exception_text.h"
#include "lockstep/rpc/internal/request_head.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

// An error's body: its type, its text, and the function's place.
void send_error(Link& link, uint64_t call, const std::string& type, const std::string& text,
                const std::string& place) {
  Writer writer;
  writer.text(type);
  writer.text(text);
  writer.text(place);
  link.send({MessageKind::kError, call}, writer.body(), {}, {}, Link::When::kNow);
}

std::string line_of(const std::source_location& site, std::string_view file) {
  return std::string(file) + ":" + std::to_string(site.line());
}

void send_error(Link& link, uint64_t call, const std::exception_ptr& error,
                const Function& function) {
  std::string type = "an unknown exception", text = "no text";
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& caught) {
    type = "c10::Error";
    text = caught.what_without_backtrace();
  } catch (const std::exception& caught) {
    type = type_name(typeid(caught));
    text = caught.what();
  } catch (...) {
  }
  constexpr size_t kMostText = 64 << 10;
  if (text.size() > kMostText) text.resize(kMostText);
  const std::string_view file = function.site.file_name();
  send_error(link, call, type, text, line_of(function.site, file.substr(file.rfind('/') + 1)));
}

}  // namespace

class InboundCall final : public Function::Result,
                          public std::enable_shared_from_this<InboundCall> {
 public:
  // Keeps copies of the message's bytes, from `head` on.
  InboundCall(InboundCalls& of, std::shared_ptr<Link> link, const Function& function,
              RequestHead head, Incoming& message, std::string_view arguments,
              std::shared_ptr<Receipt> receipt);
  ~InboundCall() override;

  void run();
  // run() on another thread, once. The task is part of this object and lives as long.
  Task task();
  // Marks the call as cancelled; returns the flag that its nested calls have as `within`.
  const std::atomic<bool>* cancel() noexcept {
    cancelled_.store(true, std::memory_order_release);  // behind Calls::stopped()
    return &cancelled_;
  }

  void value(const std::function<void(Writer&)>& write,
             const std::function<std::shared_ptr<Object>()>& object) override;
  void error(std::exception_ptr error) override;

  const Function& function() const { return function_; }
  const std::shared_ptr<Link>& link() const { return link_; }
  uint64_t order() const { return order_; }
  uint64_t number() const { return number_; }
  // Whether its tensors have yet to be fetched, or copied to devices.
  bool pending() const { return message_.pending != 0 || !message_.devices.empty(); }
  Deadline::Clock::time_point begun() const { return begun_; }

  BoardPlace board;  // used by BoardPage alone

 private:
  class Run final : public Work {
   public:
    void run() override { of->run(); }
    void drop() noexcept override { const std::shared_ptr<InboundCall> last = std::move(of); }
    std::shared_ptr<InboundCall> of;
  };

  bool nobody_waits() const {
    return cancelled_.load(std::memory_order_acquire) || deadline_.expired();
  }
  // No caller waits any more where the deadline has passed or the call was cancelled, and no answer
  // leaves an agent that stops: the result that a function returns because of that is meaningless.
  // The caller's own deadline, or the link's end, reports it.
  bool unwanted() const { return of_.calls_.stopped() || nobody_waits(); }
  bool end() noexcept { return !ended_.exchange(true, std::memory_order_acq_rel); }
  void answer(Writer& writer);
  void answer_error(const std::exception_ptr& error) {
    if (!unwanted()) send_error(*link_, number_, error, function_);
  }
  void send_copied(const Outgoing& message, const std::string& body, const Tensors* copies,
                   const std::exception_ptr& failure) noexcept;

  const std::shared_ptr<Core> agent_;  // keeps the objects below alive
  InboundCalls& of_;
  const std::shared_ptr<Link> link_;
  const Function& function_;
  const uint64_t number_;
  const uint64_t order_;
  const Deadline deadline_;
  const std::optional<ObjectId> keep_;
  std::optional<Recording> record_;
  const DeviceWay way_;
  std::shared_ptr<ContextState> context_;
  Incoming message_;  // without its body
  std::shared_ptr<Receipt> receipt_;
  c10::SmallVector<char, 256> arguments_;
  std::atomic<bool> cancelled_{false}, ended_{false};
  Run run_;
  const Deadline::Clock::time_point begun_ = Deadline::Clock::now();
};

InboundCall::InboundCall(InboundCalls& of, std::shared_ptr<Link> link, const Function& function,
                         RequestHead head, Incoming& message, std::string_view arguments,
                         std::shared_ptr<Receipt> receipt)
    : agent_(of.agent_.lock()),
      of_(of),
      link_(std::move(link)),
      function_(function),
      number_(message.head.call),
      order_(head.order),
      deadline_(Deadline::after(std::chrono::nanoseconds(
          static_cast<int64_t>(std::min<uint64_t>(head.ends_in_ns, INT64_MAX))))),
      keep_(head.keep),
      record_(std::move(head.record)),
      way_(std::move(head.way)),
      message_{message.head,
               {},
               std::move(message.tensors),
               std::move(message.devices),
               std::exchange(message.pending, 0)},
      receipt_(std::move(receipt)),
      arguments_(arguments.begin(), arguments.end()) {}

InboundCall::~InboundCall() {
  if (message_.pending) link_->drop(message_.pending);
  if (end()) of_.ended(*this);
}

Task InboundCall::task() {
  run_.of = shared_from_this();
  return Task(&run_);
}

void InboundCall::run() {
  if (nobody_waits()) {
    if (end()) of_.ended(*this);
    return;
  }
  try {
    if (message_.pending) {
      link_->fetch(message_);
      message_.pending = 0;
    }
    // A thread that waits for an answer may serve meanwhile, on streams of its own.
    const OnDefaultStreams streams(message_.devices, way_, !of_.calls_.reactor().is_own_thread());
    Tensors came;
    if (!message_.devices.empty()) {
      came = message_.tensors;
      arrive(message_.tensors, message_.devices)->come_here();
    }
    if (record_) {
      // Nothing is recorded for a context that has ended meanwhile.
      context_ = of_.contexts_.find_or_make(record_->context, link_->peer().incarnation);
      if (context_) context_->received(*record_, way_, message_.tensors, link_->peer().name);
    }
    const ContextScope scope(
        {.deadline = deadline_,
         .autograd = context_ ? std::make_shared<Recorder>(context_, record_->path) : nullptr,
         .core = agent_,
         .cancelled = {shared_from_this(), &cancelled_},
         .from = link_});
    Reader reader({arguments_.data(), arguments_.size()}, std::move(message_.tensors),
                  &of_.references_, std::move(came), std::move(receipt_));
    function_.call(reader, shared_from_this());
  } catch (...) {
    error(std::current_exception());
  }
}

void InboundCall::value(const std::function<void(Writer&)>& write,
                        const std::function<std::shared_ptr<Object>()>& object) {
  if (!end()) return;
  // This thread's writer: no other answer is written before it has been sent.
  thread_local Writer writer;
  writer.clear(&of_.references_);
  try {
    if (keep_) {
      of_.references_.objects().made(*keep_, object(), nullptr);
      writer.byte(0);
    } else if (!write) {
      throw InvalidArgument(
          "what it returns does not travel: it stays with its process; call it by remote<T>()");
    } else if (!context_) {
      writer.length(0);
      write(writer);
    } else {
      Writer result(&of_.references_);
      write(result);
      const std::vector<uint32_t> places = context_->returned(*record_, result.tensors());
      writer.length(places.size());
      for (const uint32_t place : places) writer.length(place);
      writer.raw(result.body());
      writer.tensors() = std::move(result.tensors());
      writer.references() = std::move(result.references());
    }
    if (!unwanted()) answer(writer);
  } catch (...) {
    answer_error(std::current_exception());
  }
  writer.clear(nullptr);  // this thread must not keep its tensors and references
  of_.ended(*this);
}

void InboundCall::error(std::exception_ptr error) {
  if (!end()) return;
  if (keep_) of_.references_.objects().made(*keep_, nullptr, error);
  answer_error(error);
  of_.ended(*this);
}

void InboundCall::answer(Writer& writer) {
  Outgoing message{.link = link_, .kind = MessageKind::kResponse, .call = number_};
  message.devices = devices_for(writer.tensors(), way_.reversed(), [&](c10::Device device) {
    return "a tensor on " + device.str() + " cannot be returned, since no device of '" +
           link_->peer().name + "' stands for it: AgentOptions::set_device_map(\"" +
           of_.calls_.self().name + "\", {{cuda:N, " + device.str() +
           "}}) there, or return tensor.cpu()";
  });
  if (message.devices.empty()) {
    of_.sender_.send(std::move(message), {}, writer,
                     of_.calls_.reactor().busy() ? Link::When::kSoon : Link::When::kNow);
    return;
  }
  Copies copies = of_.sender_.copy(message, {}, writer);
  // Another owner of the tensor here may change it once this has returned.
  copies.read->come_here();
  of_.sender_.send_later(
      std::move(message), std::move(copies), {}, writer, deadline_,
      [self = shared_from_this()](const Outgoing& letter, const std::string& body,
                                  const Tensors* tensors, const std::exception_ptr& error) {
        self->send_copied(letter, body, tensors, error);
      });
}

void InboundCall::send_copied(const Outgoing& message, const std::string& body,
                              const Tensors* copies, const std::exception_ptr& failure) noexcept {
  if (!copies || unwanted()) {
    of_.sender_.drop(message);
    if (failure) answer_error(failure);
    return;
  }
  try {
    of_.sender_.send_copies(message, body, *copies);
  } catch (...) {
    answer_error(std::current_exception());
  }
}

InboundCalls::InboundCalls(const Registry& registry, Calls& calls, MessageSender& sender,
                           Contexts& contexts, References& references, BoardPage& board)
    : registry_(registry),
      calls_(calls),
      sender_(sender),
      contexts_(contexts),
      references_(references),
      board_(board) {}

void InboundCalls::requested(const std::shared_ptr<Link>& link, Incoming& message) {
  std::shared_ptr<Receipt> receipt = receipt_of(agent_, link, message);
  // Only the header is read here; its tensors stay with the message.
  Reader reader(message.body, message.tensors);
  RequestHead head = RequestHead::read(reader);
  const Function* function = registry_.find(head.function);
  const uint64_t caller = link->peer().incarnation;
  const auto refuse = [&](const std::string& type, const std::string& text,
                          const std::string& place) {
    if (head.keep) {
      references_.objects().expect(*head.keep, caller);
      references_.objects().made(
          *head.keep, nullptr,
          std::make_exception_ptr(InvalidArgument("'" + std::string(head.function) + "' " + text)));
    }
    link->drop(message.pending);
    send_error(*link, message.head.call, type, text, place);
  };
  if (!function) return refuse("unknown function", "is not registered there", "");
  if (head.types_hash && head.types_hash != function->types_hash)
    return refuse("types", function->types, line_of(function->site, function->site.file_name()));
  if (head.keep) references_.objects().expect(*head.keep, caller);
  const uint64_t order = head.order;
  auto served = std::make_shared<InboundCall>(*this, link, *function, std::move(head), message,
                                              reader.rest(), std::move(receipt));
  bool now = true;
  {
    const MutexLock lock(mutex_);
    serving_.push_back(served.get());
    if (order) {
      Line& line = lines_[{link.get(), order}];
      now = !std::exchange(line.busy, true);
      if (!now) line.waiting.push_back(served);
    }
  }
  if (!now) return;
  if (function->options.quick && !served->pending())
    served->run();
  else
    calls_.reactor().post_here(served->task());
}

void InboundCalls::ended(InboundCall& call) noexcept {
  std::shared_ptr<InboundCall> next;
  {
    const MutexLock lock(mutex_);
    const auto at = std::find(serving_.begin(), serving_.end(), &call);
    if (at != serving_.end()) {
      *at = serving_.back();
      serving_.pop_back();
    }
    if (call.order()) {
      const auto found = lines_.find({call.link().get(), call.order()});
      if (found != lines_.end()) {
        if (found->second.waiting.empty()) {
          lines_.erase(found);
        } else {
          next = std::move(found->second.waiting.front());
          found->second.waiting.pop_front();
        }
      }
    }
  }
  board_.over(call.board);
  if (next) calls_.reactor().post(next->task());
}

void InboundCalls::cancelled(const std::shared_ptr<Link>& link, uint64_t call) {
  std::vector<const std::atomic<bool>*> ended;
  {
    const MutexLock lock(mutex_);
    for (InboundCall* one : serving_)
      if (one->number() == call && one->link() == link) ended.push_back(one->cancel());
  }
  calls_.cancel_within(ended);
}

void InboundCalls::lost(const std::shared_ptr<Link>& link) {
  std::vector<std::shared_ptr<InboundCall>> dropped;
  std::vector<const std::atomic<bool>*> ended;
  {
    const MutexLock lock(mutex_);
    for (InboundCall* one : serving_)
      if (one->link() == link) ended.push_back(one->cancel());
    for (auto at = lines_.begin(); at != lines_.end();) {
      const bool gone = at->first.first == link.get();
      if (gone) dropped.insert(dropped.end(), at->second.waiting.begin(), at->second.waiting.end());
      at = gone ? lines_.erase(at) : std::next(at);
    }
  }
  calls_.cancel_within(ended);
}

void InboundCalls::cancel_all() {
  const MutexLock lock(mutex_);
  for (InboundCall* one : serving_) one->cancel();
}

std::vector<ShownCall> InboundCalls::list() const {
  const auto now = Deadline::Clock::now();
  std::vector<ShownCall> all;
  const MutexLock lock(mutex_);
  for (InboundCall* one : serving_) {
    const auto call = one->weak_from_this().lock();
    if (!call) continue;  // it is being destroyed
    all.push_back({{true, call->link()->peer().name, call->function().name,
                    std::chrono::duration<double>(now - call->begun()).count()},
                   call->begun(),
                   {call, &call->board}});
  }
  return all;
}

}  // namespace lockstep::inline v0::rpc::internal
