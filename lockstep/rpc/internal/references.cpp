#include "lockstep/rpc/internal/references.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/rpc/internal/notice.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

// A reference may arrive before the request that makes its object, since that request takes another
// path, from the process that passed the reference on. A request for an unknown object therefore
// waits a while for it.
constexpr std::chrono::seconds kOnItsWay{5};
// The silence of a process with a lost link after which its references count no longer.
constexpr auto kDoubt = std::chrono::seconds(1);

std::exception_ptr was_shut_down() {
  return std::make_exception_ptr(Cancelled("the agent of a reference was shut down"));
}

// Returns an object's value, once it exists, for to_here(), or nothing, for wait(). The argument is
// its number.
class FetchFunction final : public Function {
 public:
  FetchFunction(References& references, bool value) : references_(references), value_(value) {}
  void call(Reader& arguments, const ResultPtr& result) const override {
    const ObjectId id = ObjectId::read(arguments);
    arguments.end();
    references_.when_made(
        id,
        [result, value = value_](const std::shared_ptr<Object>& object, std::exception_ptr error) {
          if (error) return result->error(error);
          if (!value) return give_nothing(*result);
          result->value([&](Writer& writer) { object->write(writer); }, nullptr);
        },
        "the object is not there any more: its last reference went, or its user was silent for "
        "longer than its lease");
  }

 private:
  References& references_;
  bool value_;
};

// Registers one more user of an object.
class AddFunction final : public Function {
 public:
  explicit AddFunction(References& references) : references_(references) {}
  void call(Reader& arguments, const ResultPtr& result) const override {
    const ObjectId id = ObjectId::read(arguments);
    const uint64_t user = arguments.word();
    arguments.end();
    ObjectTable& objects = references_.objects();
    if (objects.add(id, user)) return give_nothing(*result);
    references_.when_known(id, [&objects, id, user, result](bool known) {
      if (known && objects.add(id, user)) return give_nothing(*result);
      result->error(std::make_exception_ptr(
          InvalidArgument("the object of a reference that was passed on is not there any more")));
    });
  }

 private:
  References& references_;
};

}  // namespace

References::References(Calls& calls, Registry& registry) : calls_(calls) {
  const FunctionOptions quick{.quick = true};
  insert_own(registry, "rpc.fetch", std::make_shared<FetchFunction>(*this, true), quick);
  insert_own(registry, "rpc.wait", std::make_shared<FetchFunction>(*this, false), quick);
  insert_own(registry, "rpc.add", std::make_shared<AddFunction>(*this), quick);
}

void References::start(const std::shared_ptr<Core>& agent) {
  agent_ = agent;
  self_ = std::shared_ptr<References>(agent, this);
  connector_ =
      std::make_unique<BackgroundConnector>([weak = self_](const Peer& peer, Deadline deadline) {
        const auto self = weak.lock();
        if (!self) std::rethrow_exception(was_shut_down());
        self->calls_.check_owner(peer);
        self->calls_.link_of(peer.name, deadline, &peer);
      });
  keep_leases();
}

// ---- references of this process ----

ReferencePtr References::reference_to(const Peer& owner, ObjectId id, uint64_t adds) {
  const MutexLock lock(mutex_);
  auto& known = references_[{owner.incarnation, id}];
  ReferencePtr reference = known.lock();
  // A peer may have named another process as the owner of an object that was still to come.
  if (!reference || reference->owner.name != owner.name)
    known = reference = std::make_shared<Reference>(self_, owner, id);
  reference->adds += adds;
  return reference;
}

ReferencePtr References::own(std::shared_ptr<Object> object) {
  const Peer& self = calls_.self();
  const ObjectId id{self.incarnation, next_number()};
  objects_.expect(id, self.incarnation);
  objects_.made(id, std::move(object), nullptr);
  return reference_to(self, id, 1);
}

ReferencePtr References::remote(const std::string& to, const Request& request, Writer& arguments,
                                const Peer* owner) {
  const ObjectId id{calls_.self().incarnation, next_number()};
  auto call = std::make_shared<TypedCall<void>>();
  calls_.call(to, request, arguments, call, {.keep = id, .owner = owner});
  if (!call->link) std::rethrow_exception(call->error());
  return reference_to(call->link->peer(), id, 1);
}

void References::ask_owner(const Reference& reference, std::string_view function,
                           const CallOptions& options, const PendingPtr& call) {
  Writer& arguments = scratch_writer(this);
  reference.id.write(arguments);
  calls_.call(reference.owner.name, {.function = function, .options = options}, arguments, call,
              {.owner = &reference.owner});
}

// A reference in a message: 0; or 1, the owner (name, incarnation, pid, host), the object.
void References::write_reference(Writer& writer, const ReferencePtr& reference) {
  if (!reference) return writer.byte(0);
  if (reference->of.lock().get() != this)
    throw InvalidArgument("a reference of another agent cannot be sent by this one");
  writer.byte(1);
  writer.text(reference->owner.name);
  writer.word(reference->owner.incarnation);
  writer.word(static_cast<uint64_t>(reference->owner.pid));
  writer.text(reference->owner.host);
  reference->id.write(writer);
  writer.references().push_back(reference);
}

ReferencePtr References::read_reference(Reader& reader) {
  if (reader.byte() == 0) return nullptr;
  if (!reader.receipt()) throw DataError("a message of rpc has a reference that it does not keep");
  Peer owner;
  owner.name = reader.text();
  owner.incarnation = reader.word();
  owner.pid = static_cast<int64_t>(reader.word());
  owner.host = reader.text();
  const ObjectId id = ObjectId::read(reader);
  if (owner.incarnation == calls_.self().incarnation) owner = calls_.self();
  ReferencePtr reference = reference_to(owner, id, 0);
  if (owner.incarnation == calls_.self().incarnation) {
    if (objects_.add(id, owner.incarnation)) ++reference->adds;
    return reference;
  }
  // The code that starts the call also ends it, with an error at the least, since the continuation
  // owns the call itself.
  auto call = std::make_shared<TypedCall<void>>();
  Future<void>(call).when_done([reference, receipt = reader.receipt()](const Future<void>& done) {
    if (!done.error()) ++reference->adds;
  });
  if (calls_.has_link_to(owner.name)) {
    add_at_owner(owner, id, call);
    return reference;
  }
  // The owner comes from the sender of the reference, and may be a process that is stopped or never
  // existed.
  connector_->reach(owner, Deadline::after(calls_.options().timeout),
                    [weak = self_, owner, id, call](std::exception_ptr error) {
                      const auto self = weak.lock();
                      if (!error && self) return self->add_at_owner(owner, id, call);
                      call->state().fail(error ? error : was_shut_down());
                    });
  return reference;
}

void References::add_at_owner(const Peer& owner, ObjectId id, const PendingPtr& call) {
  try {
    Writer arguments(this);
    id.write(arguments);
    arguments.word(calls_.self().incarnation);
    const ContextScope scope({});  // it does not belong to the call that brought it
    calls_.call(owner.name, {.function = "rpc.add"}, arguments, call,
                {.owner = &owner, .waits_for_room = false});
  } catch (...) {
    call->state().fail(std::current_exception());
  }
}

void References::gone(Reference& reference) noexcept {
  {
    const MutexLock lock(mutex_);
    const auto found = references_.find({reference.owner.incarnation, reference.id});
    if (found != references_.end() && found->second.expired()) references_.erase(found);
  }
  const uint64_t adds = reference.adds, self = calls_.self().incarnation;
  if (adds == 0 || calls_.stopped()) return;
  if (reference.owner.incarnation == self) return objects_.release(reference.id, self, adds);
  try {
    Writer notice = notice_of(Notice::kReleased);
    reference.id.write(notice);
    notice.word(self);
    notice.word(adds);
    if (calls_.tell(reference.owner, notice)) return;
    const MutexLock lock(mutex_);
    untold_.push_back({reference.owner, std::move(notice), Deadline::Clock::now()});
  } catch (const std::exception& error) {
    log_warning("rpc: a reference of " + reference.owner.str() +
                " could not be given back: " + error.what());
  }
}

Reference::~Reference() {
  if (const auto alive = of.lock()) alive->gone(*this);
}

size_t References::held() const {
  const MutexLock lock(mutex_);
  return static_cast<size_t>(
      std::count_if(references_.begin(), references_.end(), [this](const auto& one) {
        return !one.second.expired() && one.first.first != calls_.self().incarnation;
      }));
}

// ---- objects of this process ----

void References::when_known(ObjectId id, ObjectTable::Then then) {
  const uint64_t waiting = objects_.when_known(id, std::move(then));
  if (waiting == 0) return;
  calls_.reactor().at(Deadline::Clock::now() + kOnItsWay, task_of([weak = self_, waiting] {
                        if (const auto self = weak.lock()) self->objects_.give_up(waiting);
                      }));
}

void References::when_made(ObjectId id, const ObjectTable::Ready& ready,
                           const std::string& otherwise) {
  if (objects_.when_made(id, ready)) return;
  when_known(id, [this, id, ready, otherwise](bool known) {
    if (!known || !objects_.when_made(id, ready))
      ready(nullptr, std::make_exception_ptr(InvalidArgument(otherwise)));
  });
}

void References::released(Reader& notice) {
  const ObjectId id = ObjectId::read(notice);
  const uint64_t user = notice.word();
  objects_.release(id, user, notice.word());
}

// ---- leases ----

// An owner that counts this process has, or had, a link with it. If that was lost, the owner has
// ended, or will soon stop counting this process. It still counts it only where a call has made a
// link with the same owner meanwhile.
void References::tell_what_was_not() {
  std::vector<Untold> untold;
  {
    const MutexLock lock(mutex_);
    untold.swap(untold_);
  }
  const auto forgotten = Deadline::Clock::now() - 2 * calls_.options().lease;
  std::erase_if(untold, [&](const Untold& one) {
    return one.since < forgotten || calls_.tell(one.owner, one.notice);
  });
  const MutexLock lock(mutex_);
  untold_.insert(untold_.end(), std::make_move_iterator(untold.begin()),
                 std::make_move_iterator(untold.end()));
}

void References::keep_leases() {
  if (calls_.stopped()) return;
  // One reference of each process, under each name that peers have given it.
  std::map<std::pair<uint64_t, std::string>, ReferencePtr> owners;
  std::vector<ReferencePtr> others;  // the last handle of a reference is not dropped with the lock
  {
    const MutexLock lock(mutex_);
    for (const auto& [key, weak] : references_) {
      if (key.first == calls_.self().incarnation) continue;
      ReferencePtr reference = weak.lock();
      if (reference && !owners.try_emplace({key.first, reference->owner.name}, reference).second)
        others.push_back(std::move(reference));
    }
  }
  const Writer notice = notice_of(Notice::kAlive);
  for (const auto& [process, reference] : owners) calls_.tell(reference->owner, notice);
  tell_what_was_not();
  expire();
  calls_.reactor().at(Deadline::Clock::now() + calls_.options().lease / 3, task_of([weak = self_] {
                        if (const auto self = weak.lock()) self->keep_leases();
                      }));
}

void References::doubt(const Peer& user) {
  // A link may be lost while its process is alive: only silence from now on ends its references.
  objects_.doubt(user.incarnation, Deadline::Clock::now() - calls_.options().lease + kDoubt);
}

void References::expire() {
  // An object's destructor is the user's code and may wait, so it does not run here, on the leader.
  calls_.reactor().post(task_of([weak = self_] {
    const auto self = weak.lock();
    if (!self) return;
    for (const uint64_t user :
         self->objects_.drop_silent(Deadline::Clock::now() - self->calls_.options().lease,
                                    self->calls_.self().incarnation))
      log_info("rpc: the references of a process that ended or was silent count no longer (" +
               std::to_string(user) + ")");
  }));
}

void References::stop(Deadline deadline) noexcept {
  if (connector_) connector_->stop(deadline.time());
}

// ---- called by the headers' templates ----

ReferenceCodec& codec_of(Writer& writer) {
  if (!writer.codec()) throw InvalidArgument("a reference cannot be written outside of a call");
  return *writer.codec();
}
ReferenceCodec& codec_of(Reader& reader) {
  if (!reader.codec()) throw InvalidArgument("a reference cannot be read outside of a call");
  return *reader.codec();
}

void throw_empty_reference() {
  throw InvalidArgument("this rpc::RRef refers to nothing");
}

namespace {

std::shared_ptr<References> references_of(const ReferencePtr& reference) {
  auto references = reference->of.lock();
  if (!references) std::rethrow_exception(was_shut_down());
  return references;
}

}  // namespace

bool is_here(const ReferencePtr& reference) {
  const auto references = reference->of.lock();
  return references && references->calls().self().incarnation == reference->owner.incarnation;
}

std::shared_ptr<Object> owned_object(const ReferencePtr& reference, const std::type_info& type) {
  if (!reference) throw_empty_reference();
  const auto references = references_of(reference);
  const Peer& self = references->calls().self();
  if (self.incarnation != reference->owner.incarnation)
    throw InvalidArgument("the object of this reference lives in " + reference->owner.str() +
                          ", not in '" + self.name +
                          "': to_here() copies it, rpc_sync() calls functions there");
  const auto shared = std::make_shared<Promise<std::shared_ptr<Object>>>();
  references->when_made(
      reference->id,
      [shared](const std::shared_ptr<Object>& object, std::exception_ptr error) {
        if (error)
          shared->set_error(error);
        else
          shared->set_value(object);
      },
      "the object of this reference is not there any more");
  std::shared_ptr<Object> object = shared->future().get();
  if (object->type() != type)
    throw InvalidArgument("the object of this reference is a " + type_name(object->type()) +
                          ", not a " + type_name(type));
  return object;
}

void start_at_owner(const ReferencePtr& reference, std::string_view function,
                    const CallOptions& options, const PendingPtr& call) {
  const auto references = reference->of.lock();
  if (!references) return call->state().fail(was_shut_down());
  references->ask_owner(*reference, function, options, call);
}

std::shared_ptr<Core> agent_of(const ReferencePtr& reference) {
  const auto references = references_of(reference);
  references->calls().check_owner(reference->owner);
  return references->agent().lock();
}

}  // namespace lockstep::inline v0::rpc::internal
