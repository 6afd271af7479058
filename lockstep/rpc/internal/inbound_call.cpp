#include "lockstep/rpc/internal/inbound_call.h"

#include <c10/util/Exception.h>

#include "lockstep/core/exception_text.h"

namespace lockstep::rpc::internal {

InboundCall::InboundCall(std::shared_ptr<Core> core, std::shared_ptr<Link> link,
                         const Function& function, RequestHead head, Incoming& message,
                         std::string_view arguments)
    : core_(std::move(core)),
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
      arguments_(arguments.begin(), arguments.end()) {}

InboundCall::~InboundCall() {
  if (!read_) core_->drop_unread(link_, message_);
  if (end()) core_->served(*this);
}

Task InboundCall::task() {
  run_.of = shared_from_this();
  return Task(&run_);
}

void InboundCall::run() {
  if (nobody_waits()) {
    if (end()) ended();
    return;
  }
  try {
    if (message_.pending) {
      link_->fetch(message_);
      message_.pending = 0;
    }
    // A thread that waits for an answer may serve meanwhile, on streams of its own.
    const OnDefaultStreams streams(message_.devices, way_, !core_->reactor().is_own_thread());
    Tensors came;
    if (!message_.devices.empty()) {
      came = message_.tensors;
      arrive(message_.tensors, message_.devices)->come_here();
    }
    if (record_) {
      // Nothing is recorded for a context that has ended meanwhile.
      context_ = core_->contexts().find_or_make(record_->context, link_->peer().incarnation, core_);
      if (context_) context_->received(*record_, way_, message_.tensors, link_->peer().name);
    }
    const ContextScope scope(
        {.deadline = deadline_,
         .autograd = context_ ? std::make_shared<Recorder>(context_, record_->path) : nullptr,
         .core = core_,
         .cancelled = {shared_from_this(), &cancelled_},
         .from = link_});
    LinkReferences references(*core_, link_);
    Reader reader({arguments_.data(), arguments_.size()}, std::move(message_.tensors), &references,
                  std::move(came));
    read_ = true;
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
  LinkReferences references(*core_, link_);
  writer.clear(&references);
  try {
    if (keep_) {
      core_->objects().made(*keep_, object(), nullptr);
      writer.byte(0);
    } else if (!write) {
      throw InvalidArgument(
          "what it returns does not travel: it stays with its process; call it by remote<T>()");
    } else if (!context_) {
      writer.length(0);
      write(writer);
    } else {
      Writer result(&references);
      std::vector<uint32_t> places;
      try {
        write(result);
        places = context_->returned(*record_, result.tensors());
      } catch (...) {
        core_->drop_holds(result.holds());
        throw;
      }
      writer.length(places.size());
      for (const uint32_t place : places) writer.length(place);
      writer.raw(result.body());
      writer.tensors() = std::move(result.tensors());
      writer.holds() = std::move(result.holds());
    }
    answer(MessageKind::kResponse, writer);
  } catch (...) {
    core_->drop_holds(writer.holds());
    Writer error;
    write_error(error, std::current_exception(), function_);
    answer(MessageKind::kError, error);
  }
  writer.clear(nullptr);  // this thread must not keep its tensors
  ended();
}

void InboundCall::error(std::exception_ptr error) {
  if (!end()) return;
  if (keep_) core_->objects().made(*keep_, nullptr, error);
  Writer writer;
  write_error(writer, error, function_);
  answer(MessageKind::kError, writer);
  ended();
}

// No caller waits any more where the deadline has passed or the call was cancelled, and no answer
// leaves an agent that stops: the result that a function returns because of that is meaningless.
// The caller's own deadline, or the link's end, reports it.
void InboundCall::answer(MessageKind kind, Writer& writer) {
  if (unwanted()) return core_->drop_holds(writer.holds());
  Devices devices = devices_for(writer.tensors(), way_.reversed(), [&](c10::Device device) {
    return "a tensor on " + device.str() + " cannot be returned, since no device of '" +
           link_->peer().name + "' stands for it: AgentOptions::set_device_map(\"" +
           core_->self().name + "\", {{cuda:N, " + device.str() +
           "}}) there, or return tensor.cpu()";
  });
  core_->held_by(writer.holds(), link_, {number_, true});
  if (!devices.empty()) {
    link_->check(writer.body().size(), writer.tensors());
    Copies copies = core_->sender().copy(writer.tensors());
    // Another owner of the tensor here may change it once this has returned.
    copies.read->come_here();
    if (!core_->sender().post(
            std::move(copies), {link_.get()}, deadline_,
            [self = shared_from_this(), body = writer.body(), devices = std::move(devices),
             holds = writer.holds()](const Tensors* tensors, const std::exception_ptr& error) {
              self->send_copied(body, tensors, error, devices, holds);
            }))
      core_->drop_holds(writer.holds());
    return;
  }
  const bool sent = link_->send({kind, number_}, writer.body(), {}, writer.tensors(),
                                core_->reactor().busy() ? Link::When::kSoon : Link::When::kNow);
  if (!sent) core_->drop_holds(writer.holds());
}

bool InboundCall::unwanted() const {
  return core_->stopped() || nobody_waits();
}

void InboundCall::send_copied(const std::string& body, const Tensors* copies,
                              const std::exception_ptr& failure, const Devices& devices,
                              const std::vector<uint64_t>& holds) noexcept {
  if ((!copies && !failure) || unwanted()) return core_->drop_holds(holds);
  try {
    if (failure) std::rethrow_exception(failure);
    if (link_->send({MessageKind::kResponse, number_, &devices}, body, {}, *copies,
                    Link::When::kNow))
      return;
    core_->drop_holds(holds);
  } catch (...) {
    core_->drop_holds(holds);
    Writer error;
    write_error(error, std::current_exception(), function_);
    link_->send({MessageKind::kError, number_}, error.body(), {}, {}, Link::When::kNow);
  }
}

void InboundCall::ended() {
  core_->served(*this);
}

void write_error(Writer& writer, std::exception_ptr error, const Function& function) {
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
  std::string_view file = function.site.file_name();
  writer.text(type);
  writer.text(text);
  writer.text(std::string(file.substr(file.rfind('/') + 1)) + ":" +
              std::to_string(function.site.line()));
}

}  // namespace lockstep::rpc::internal
