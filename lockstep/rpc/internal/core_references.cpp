// Core's part for references: which process has which, and until when.
//
// The sender keeps a reference until the receiver is registered with the owner and has acknowledged
// it (kArrived). The owner's count therefore never drops to zero while a reference is on its way.
#include <algorithm>
#include <chrono>
#include <iterator>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/rpc/internal/core.h"
#include "lockstep/rpc/internal/inbound_call.h"

namespace lockstep::rpc::internal {
namespace {

enum Notice : uint8_t { kAlive = 1, kArrived, kReleased, kForget, kUnread };

void write_id(Writer& writer, ObjectId id) {
  writer.word(id.maker);
  writer.word(id.number);
}
ObjectId read_id(Reader& reader) {
  const uint64_t maker = reader.word();
  return {maker, reader.word()};
}

// A reference may arrive before the request that makes its object, since that request takes another
// path, from the process that passed the reference on. A request for an unknown object therefore
// waits a while for it.
constexpr std::chrono::seconds kOnItsWay{5};

// Returns an object's value, once it exists, for to_here(), or nothing, for wait(). The argument is
// its number.
class FetchFunction final : public Function {
 public:
  FetchFunction(Core& core, bool value) : core_(core), value_(value) {}
  void call(Reader& arguments, const ResultPtr& result) const override {
    const ObjectId id = read_id(arguments);
    arguments.end();
    const auto ready = [result, value = value_](const std::shared_ptr<Object>& object,
                                                std::exception_ptr error) {
      if (error) return result->error(error);
      if (!value) return give_nothing(*result);
      result->value([&](Writer& writer) { object->write(writer); }, nullptr);
    };
    if (core_.objects().when_made(id, ready)) return;
    core_.when_known(id, [&core = core_, id, ready, result](bool known) {
      if (!known || !core.objects().when_made(id, ready))
        result->error(std::make_exception_ptr(
            InvalidArgument("the object is not there any more: its last reference went, or its "
                            "user was silent for longer than its lease")));
    });
  }

 private:
  Core& core_;
  bool value_;
};

// Registers one more user of an object.
class AddFunction final : public Function {
 public:
  explicit AddFunction(Core& core) : core_(core) {}
  void call(Reader& arguments, const ResultPtr& result) const override {
    const ObjectId id = read_id(arguments);
    const uint64_t user = arguments.word();
    arguments.end();
    if (core_.objects().add(id, user)) return give_nothing(*result);
    core_.when_known(id, [&core = core_, id, user, result](bool known) {
      if (known && core.objects().add(id, user)) return give_nothing(*result);
      result->error(std::make_exception_ptr(
          InvalidArgument("the object of a reference that was passed on is not there any more")));
    });
  }

 private:
  Core& core_;
};

}  // namespace

void LinkReferences::write_reference(Writer& writer, const ReferencePtr& reference) {
  core_.write_reference(writer, reference);
}
ReferencePtr LinkReferences::read_reference(Reader& reader) {
  return core_.read_reference(reader, link_);
}

void Core::register_own_functions() {
  insert_own(registry_, "rpc.fetch", std::make_shared<FetchFunction>(*this, true), {.quick = true});
  insert_own(registry_, "rpc.wait", std::make_shared<FetchFunction>(*this, false), {.quick = true});
  insert_own(registry_, "rpc.add", std::make_shared<AddFunction>(*this), {.quick = true});
  register_autograd(*this, registry_);
}

void Core::insert_own(Registry& registry, const std::string& name,
                      std::shared_ptr<Function> function, FunctionOptions options) {
  registry.insert(name, std::move(function), options, std::source_location::current(), true);
}

void Core::when_known(ObjectId id, ObjectTable::Then then) {
  const uint64_t waiting = objects_.when_known(id, std::move(then));
  if (waiting == 0) return;
  reactor_->at(Deadline::Clock::now() + kOnItsWay, task_of([weak = weak_from_this(), waiting] {
                 if (const auto core = weak.lock()) core->objects_.give_up(waiting);
               }));
}

ReferencePtr Core::own(std::shared_ptr<Object> object) {
  const ObjectId id{self().incarnation, next_number()};
  objects_.expect(id, self().incarnation);
  objects_.made(id, std::move(object), nullptr);
  auto reference = std::make_shared<Reference>(weak_from_this(), self(), id);
  reference->adds = 1;
  const MutexLock lock(mutex_);
  references_[{self().incarnation, id}] = reference;
  return reference;
}

ReferencePtr Core::remote(const std::string& to, std::string_view function, uint64_t types_hash,
                          const std::string& types, Writer& arguments, const CallOptions& options,
                          const Peer* owner) {
  const ObjectId id{self().incarnation, next_number()};
  auto call = std::make_shared<TypedCall<void>>();
  this->call(to, function, types_hash, &types, arguments, options, How::kAsync, call,
             {.keep = id, .owner = owner});
  if (!call->link) std::rethrow_exception(call->error());
  auto reference = std::make_shared<Reference>(weak_from_this(), call->link->peer(), id);
  reference->adds = 1;
  const MutexLock lock(mutex_);
  references_[{reference->owner.incarnation, id}] = reference;
  return reference;
}

// A reference in a message: 0; or 1, the owner (name, incarnation, pid, host), the object, the
// hold.
void Core::write_reference(Writer& writer, const ReferencePtr& reference) {
  if (!reference) return writer.byte(0);
  if (reference->core.lock().get() != this)
    throw InvalidArgument("a reference of another agent cannot be sent by this one");
  const uint64_t hold = next_number();
  writer.byte(1);
  writer.text(reference->owner.name);
  writer.word(reference->owner.incarnation);
  writer.word(static_cast<uint64_t>(reference->owner.pid));
  writer.text(reference->owner.host);
  write_id(writer, reference->id);
  writer.word(hold);
  writer.holds().push_back(hold);
  const MutexLock lock(mutex_);
  holds_[hold] = {reference, nullptr, {}};
}

ReferencePtr Core::read_reference(Reader&) {
  throw InvalidArgument("a reference is read from a message of a link");
}

ReferencePtr Core::read_reference(Reader& reader, const std::shared_ptr<Link>& link) {
  if (reader.byte() == 0) return nullptr;
  Peer owner;
  owner.name = reader.text();
  owner.incarnation = reader.word();
  owner.pid = static_cast<int64_t>(reader.word());
  owner.host = reader.text();
  const ObjectId id = read_id(reader);
  const uint64_t hold = reader.word();

  ReferencePtr reference;
  {
    const MutexLock lock(mutex_);
    auto& known = references_[{owner.incarnation, id}];
    reference = known.lock();
    if (!reference) known = reference = std::make_shared<Reference>(weak_from_this(), owner, id);
  }
  const auto arrived = [weak = weak_from_this(), link, hold] {
    const auto core = weak.lock();
    if (!core) return;
    Writer notice;
    notice.byte(kArrived);
    notice.word(hold);
    core->send_notice(link, notice);
  };
  if (owner.incarnation == self().incarnation) {
    if (objects_.add(id, self().incarnation)) {
      const MutexLock lock(mutex_);
      ++reference->adds;
    }
    arrived();
    return reference;
  }
  // The code that starts the call also ends it, with an error at the least, since the continuation
  // owns the call itself.
  auto call = std::make_shared<TypedCall<void>>();
  Future<void>(call).when_done(
      [weak = weak_from_this(), reference, arrived](const Future<void>& done) {
        const auto core = weak.lock();
        if (core && !done.error()) {
          const MutexLock lock(core->mutex_);
          ++reference->adds;
        }
        arrived();
      });
  if (transport_->living_link_to(owner.name)) {
    add_at_owner(owner, id, call);
    return reference;
  }
  // The owner comes from the sender of the reference, and may be a process that is stopped or never
  // existed.
  connector_->reach(owner, Deadline::after(options_.timeout),
                    [weak = weak_from_this(), owner, id, call](std::exception_ptr error) {
                      const auto core = weak.lock();
                      if (!error && core) return core->add_at_owner(owner, id, call);
                      call->state().fail(error ? error
                                               : std::make_exception_ptr(Cancelled(
                                                     "the agent of a reference was shut down")));
                    });
  return reference;
}

void Core::add_at_owner(const Peer& owner, ObjectId id, const PendingPtr& call) {
  try {
    Writer arguments(this);
    write_id(arguments, id);
    arguments.word(self().incarnation);
    const ContextScope scope({});  // it does not belong to the call that brought it
    this->call(owner.name, "rpc.add", 0, nullptr, arguments, {}, How::kSync, call,
               {.owner = &owner, .waits_for_room = false});
  } catch (...) {
    call->state().fail(std::current_exception());
  }
}

void Core::held_by(const std::vector<uint64_t>& holds, const std::shared_ptr<Link>& link,
                   MessageOf message) noexcept {
  if (holds.empty()) return;
  const MutexLock lock(mutex_);
  for (const uint64_t hold : holds) {
    const auto found = holds_.find(hold);
    if (found == holds_.end()) continue;
    found->second.link = link;
    found->second.message = message;
  }
}

void Core::drop_holds(const std::vector<uint64_t>& holds) noexcept {
  if (holds.empty()) return;
  std::vector<ReferencePtr> freed;  // destroyed without the lock
  const MutexLock lock(mutex_);
  for (const uint64_t hold : holds) {
    const auto found = holds_.find(hold);
    if (found == holds_.end()) continue;
    freed.push_back(std::move(found->second.reference));
    holds_.erase(found);
  }
}

void Core::drop_unread(const std::shared_ptr<Link>& link, const Incoming& message) noexcept {
  if (message.pending) link->drop(message.pending);
  if (message.head.kind == MessageKind::kError) return;  // it has no references
  say_unread(link, {message.head.call, message.head.kind == MessageKind::kResponse});
}

void Core::say_unread(const std::shared_ptr<Link>& link, MessageOf message) noexcept {
  if (stopped()) return;
  try {
    Writer notice;
    notice.byte(kUnread);
    notice.byte(message.answer ? 1 : 0);
    notice.word(message.call);
    send_notice(link, notice);
  } catch (const std::exception& error) {
    log_warning("rpc: " + link->peer().str() +
                " cannot be told that a message was dropped: " + error.what());
  }
}

void Core::reference_gone(Reference& reference) noexcept {
  uint64_t adds = 0;
  {
    const MutexLock lock(mutex_);
    adds = reference.adds;
    const auto found = references_.find({reference.owner.incarnation, reference.id});
    if (found != references_.end() && found->second.expired()) references_.erase(found);
  }
  if (adds == 0 || stopped()) return;
  if (reference.owner.incarnation == self().incarnation)
    return objects_.release(reference.id, self().incarnation, adds);
  try {
    Writer notice;
    notice.byte(kReleased);
    write_id(notice, reference.id);
    notice.word(self().incarnation);
    notice.word(adds);
    if (tell(reference.owner, notice)) return;
    const MutexLock lock(mutex_);
    untold_.push_back({reference.owner, std::move(notice), Deadline::Clock::now()});
  } catch (const std::exception& error) {
    log_warning("rpc: a reference of " + reference.owner.str() +
                " could not be given back: " + error.what());
  }
}

Reference::~Reference() {
  if (const auto alive = core.lock()) alive->reference_gone(*this);
}

void Core::send_notice(const std::shared_ptr<Link>& link, const Writer& notice) {
  // Sent over a link that the other end made, which can also send in this direction.
  link->send({MessageKind::kNotice, 0}, notice.body(), {}, {}, Link::When::kNow);
}

bool Core::tell(const Peer& peer, const Writer& notice) {
  const auto link = transport_->living_link_to(peer.name);
  if (!link || link->peer().incarnation != peer.incarnation) return false;
  send_notice(link, notice);
  return true;
}

// An owner that counts this process has, or had, a link with it. If that was lost, the owner has
// ended, or will soon stop counting this process. It still counts it only where a call has made a
// link with the same owner meanwhile.
void Core::tell_what_was_not() {
  std::vector<Untold> untold;
  {
    const MutexLock lock(mutex_);
    untold.swap(untold_);
  }
  const auto forgotten = Deadline::Clock::now() - 2 * options_.lease;
  std::erase_if(untold, [&](const Untold& one) {
    return one.since < forgotten || tell(one.owner, one.notice);
  });
  const MutexLock lock(mutex_);
  untold_.insert(untold_.end(), std::make_move_iterator(untold.begin()),
                 std::make_move_iterator(untold.end()));
}

void Core::received_notice(const std::shared_ptr<Link>& link, Reader& notice) {
  switch (notice.byte()) {
    case kAlive:
      return objects_.heard(link->peer().incarnation, Deadline::Clock::now());
    case kArrived:
      return drop_holds({notice.word()});
    case kUnread: {
      const bool answer = notice.byte() != 0;
      const MessageOf message{notice.word(), answer};
      std::vector<uint64_t> holds;
      {
        const MutexLock lock(mutex_);
        for (const auto& [number, hold] : holds_)
          if (hold.link == link && hold.message == message) holds.push_back(number);
      }
      return drop_holds(holds);
    }
    case kReleased: {
      const ObjectId id = read_id(notice);
      const uint64_t user = notice.word();
      return objects_.release(id, user, notice.word());
    }
    case kForget: {
      const uint64_t maker = notice.word();
      return forget({maker, notice.word()});
    }
    default:
      throw DataError("a notice of rpc of an unknown kind");
  }
}

// The participants of a context tell the processes that they called.
void Core::forget(ContextId id) {
  const std::set<std::string> peers = contexts_.release(id);
  Writer notice;
  notice.byte(kForget);
  notice.word(id.maker);
  notice.word(id.number);
  for (const std::string& peer : peers)
    if (const auto link = transport_->living_link_to(peer)) send_notice(link, notice);
}

void Core::keep_leases() {
  if (stopped()) return;
  const auto now = Deadline::Clock::now();
  std::map<uint64_t, Peer> owners;
  {
    const MutexLock lock(mutex_);
    for (const auto& [key, weak] : references_)
      if (const auto reference = weak.lock(); reference && key.first != self().incarnation)
        owners.try_emplace(key.first, reference->owner);
  }
  Writer notice;
  notice.byte(kAlive);
  for (const auto& [incarnation, owner] : owners) tell(owner, notice);
  tell_what_was_not();
  expire();
  reactor_->at(now + options_.lease / 3, task_of([weak = weak_from_this()] {
                 if (const auto core = weak.lock()) core->keep_leases();
               }));
}

void Core::expire() {
  // An object's destructor is the user's code and may wait, so it does not run here, on the leader.
  reactor_->post(task_of([weak = weak_from_this()] {
    const auto core = weak.lock();
    if (!core) return;
    for (const uint64_t user : core->objects_.drop_silent(
             Deadline::Clock::now() - core->options_.lease, core->self().incarnation))
      log_info("rpc: the references of a process that ended or was silent count no longer (" +
               std::to_string(user) + ")");
  }));
}

size_t Core::holds() const {
  const MutexLock lock(mutex_);
  return holds_.size();
}

size_t Core::held_references() const {
  const MutexLock lock(mutex_);
  size_t count = 0;
  for (const auto& [key, weak] : references_)
    if (!weak.expired() && key.first != self().incarnation) ++count;
  return count;
}

// ---- called by the headers' templates ----

References& references_of(Writer& writer) {
  if (!writer.references())
    throw InvalidArgument("a reference cannot be written outside of a call");
  return *writer.references();
}
References& references_of(Reader& reader) {
  if (!reader.references()) throw InvalidArgument("a reference cannot be read outside of a call");
  return *reader.references();
}

bool is_here(const ReferencePtr& reference) {
  const auto core = reference->core.lock();
  return core && core->self().incarnation == reference->owner.incarnation;
}

void throw_empty_reference() {
  throw InvalidArgument("this rpc::RRef refers to nothing");
}

std::shared_ptr<Object> owned_object(const ReferencePtr& reference, const std::type_info& type) {
  if (!reference) throw_empty_reference();
  const auto core = reference->core.lock();
  if (!core) throw Cancelled("the agent of a reference was shut down");
  if (core->self().incarnation != reference->owner.incarnation)
    throw InvalidArgument("the object of this reference lives in " + reference->owner.str() +
                          ", not in '" + core->self().name +
                          "': to_here() copies it, rpc_sync() calls functions there");
  const auto shared = std::make_shared<Promise<std::shared_ptr<Object>>>();
  const auto future = shared->future();
  const auto ready = [shared](const std::shared_ptr<Object>& object, std::exception_ptr error) {
    if (error)
      shared->set_error(error);
    else
      shared->set_value(object);
  };
  ObjectTable& objects = core->objects();
  if (const ObjectId id = reference->id; !objects.when_made(id, ready)) {
    core->when_known(id, [&objects, id, ready](bool known) {
      if (!known || !objects.when_made(id, ready))
        ready(nullptr, std::make_exception_ptr(
                           InvalidArgument("the object of this reference is not there any more")));
    });
  }
  std::shared_ptr<Object> object = future.get();
  if (object->type() != type)
    throw InvalidArgument("the object of this reference is a " + type_name(object->type()) +
                          ", not a " + type_name(type));
  return object;
}

namespace {

// Calls a function of the owner with the object as its argument.
void ask_owner(const ReferencePtr& reference, const char* function, const CallOptions& options,
               const PendingPtr& call) {
  const auto core = reference->core.lock();
  if (!core)
    return call->state().fail(
        std::make_exception_ptr(Cancelled("the agent of a reference was shut down")));
  Writer& arguments = scratch_writer(core);
  write_id(arguments, reference->id);
  core->call_owner(reference->owner, function, arguments, options, How::kSync, call);
}

}  // namespace

void start_fetch(const ReferencePtr& reference, const CallOptions& options,
                 const PendingPtr& call) {
  ask_owner(reference, "rpc.fetch", options, call);
}

void start_wait(const ReferencePtr& reference, const CallOptions& options, const PendingPtr& call) {
  ask_owner(reference, "rpc.wait", options, call);
}

Destination destination_of(const ReferencePtr& reference, const CallOptions& options) {
  const auto core = reference->core.lock();
  if (!core) throw Cancelled("the agent of a reference was shut down");
  core->check_owner(reference->owner);
  return Destination(core, reference->owner.name, options, reference);
}

}  // namespace lockstep::rpc::internal
