// RRef: a reference to an object that a process owns: a model, an optimizer, a tensor, anything.
// The owner keeps the object as long as any process has a reference to it.
//
//   // Net is made on "ps" and stays there; "forward" is registered with a first parameter Net&.
//   rpc::RRef<Net> net = agent.remote<Net>("ps", "make_net", 128);
//   at::Tensor y = net.rpc_sync<at::Tensor>("forward", x);
//   at::Tensor bias = agent.remote<at::Tensor>("ps", "bias").to_here();
//
// A reference may be an argument, a result, or part of one; its receiver becomes a user of the
// object, too. The owner counts users with leases: each process that has references renews its
// lease from time to time. The references of a process that ended, or was silent for
// AgentOptions::lease, no longer count, so a killed user leaks nothing. When the owner is gone,
// using the reference throws PeerLost that names it; a process that comes back under the owner's
// name does not own the object. A copy is a handle of the same reference, for any thread; the last
// one may be destroyed anywhere, and its destruction never waits.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "lockstep/core/export.h"
#include "lockstep/rpc/call_options.h"
#include "lockstep/rpc/codec.h"
#include "lockstep/rpc/future.h"
#include "lockstep/rpc/peer.h"

namespace lockstep::inline v0::rpc {

class Agent;
class Destination;

namespace internal {

class References;

// Identity: the creating process and its sequence number.
struct LOCKSTEP_API ObjectId {
  uint64_t maker = 0;  // incarnation of the creating process
  uint64_t number = 0;
  friend auto operator<=>(const ObjectId&, const ObjectId&) = default;
  void write(Writer& writer) const {
    writer.word(maker);
    writer.word(number);
  }
  static ObjectId read(Reader& reader) {
    const uint64_t maker = reader.word();
    return {maker, reader.word()};
  }
};

// This process's share in an object, common to all its handles.
class LOCKSTEP_API Reference {
 public:
  Reference(std::weak_ptr<References> of, Peer owner, ObjectId id)
      : of(std::move(of)), owner(std::move(owner)), id(id) {}
  ~Reference();  // tells the owner, without waiting
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  const std::weak_ptr<References> of;  // the agent's
  const Peer owner;
  const ObjectId id;
  std::atomic<uint64_t> adds = 0;  // how often the owner has counted this process
};
using ReferencePtr = std::shared_ptr<Reference>;

// Writes and reads references in messages.
class LOCKSTEP_API ReferenceCodec {
 public:
  virtual ~ReferenceCodec() = default;
  virtual void write_reference(Writer& writer, const ReferencePtr& reference) = 0;
  virtual ReferencePtr read_reference(Reader& reader) = 0;
};
// Throw InvalidArgument outside of a call.
LOCKSTEP_API ReferenceCodec& codec_of(Writer& writer);
LOCKSTEP_API ReferenceCodec& codec_of(Reader& reader);

// An object that an owner keeps.
class LOCKSTEP_API Object {
 public:
  virtual ~Object() = default;
  virtual const std::type_info& type() const = 0;
  // Writes the value. Returns false if values of the type cannot be sent.
  virtual bool write(Writer& writer) const = 0;
};
template <typename T>
class TypedObject final : public Object {
 public:
  explicit TypedObject(std::shared_ptr<T> value) : value_(std::move(value)) {}
  const std::type_info& type() const override { return typeid(T); }
  bool write([[maybe_unused]] Writer& writer) const override {
    if constexpr (Travels<T>) {
      Codec<T>::write(writer, *value_);
      return true;
    } else {
      return false;
    }
  }
  const std::shared_ptr<T>& value() const { return value_; }

 private:
  std::shared_ptr<T> value_;
};
// The owner's object. Waits until it has been made, with the call's deadline.
// Throws: the error of its construction, and InvalidArgument where this process is not the owner or
// the type differs.
LOCKSTEP_API std::shared_ptr<Object> owned_object(const ReferencePtr& reference,
                                                  const std::type_info& type);
template <typename T>
std::shared_ptr<T> owned(const ReferencePtr& reference) {
  return static_cast<const TypedObject<T>&>(*owned_object(reference, typeid(T))).value();
}
// Describes T: by its types if it can be sent, otherwise by its name.
template <typename T>
void describe_type(TypeText& text) {
  if constexpr (Travels<T>)
    Codec<T>::describe(text);
  else
    text += type_name(typeid(T));
}

}  // namespace internal

template <typename T>
class RRef {
 public:
  RRef() = default;
  explicit RRef(internal::ReferencePtr reference) : reference_(std::move(reference)) {}

  bool valid() const { return reference_ != nullptr; }  // not an empty reference
  // The owner's name. An empty reference throws InvalidArgument, here and in the members below.
  const std::string& owner() const { return get().owner.name; }
  bool is_owner() const;  // the object is here

  // The object itself, on its owner; waits until it has been made.
  // Throws: InvalidArgument on other processes.
  std::shared_ptr<T> local_value() const { return internal::owned<T>(checked()); }
  // A copy of the value from its owner, once it has been made. With an autograd context, gradients
  // flow back through it.
  // Throws: the error of its construction (RemoteError), PeerLost, Timeout.
  T to_here() const
    requires Travels<T>;
  Future<T> to_here_async() const
    requires Travels<T>;
  // Waits until it has been made.
  void wait() const;

  // Calls a function of the owner whose first parameter is T& or std::shared_ptr<T>. See agent.h.
  template <typename R = void, typename... Args>
  R rpc_sync(std::string_view function, Args&&... args) const;
  template <typename R = void, typename... Args>
  Future<R> rpc_async(std::string_view function, Args&&... args) const;
  template <typename R, typename... Args>
  RRef<R> remote(std::string_view function, Args&&... args) const;

  // The same reference with options for calls through this handle: net.with({.timeout =
  // …}).to_here(). They are not sent with it.
  RRef with(CallOptions options) const {
    RRef handle = *this;
    handle.options_ = options;
    return handle;
  }

  const internal::ReferencePtr& reference() const { return reference_; }

 private:
  const internal::ReferencePtr& checked() const;
  Destination to_owner() const;
  const internal::Reference& get() const { return *checked(); }

  internal::ReferencePtr reference_;
  CallOptions options_;
};

namespace internal {
[[noreturn]] LOCKSTEP_API void throw_empty_reference();
LOCKSTEP_API bool is_here(const ReferencePtr& reference);
}  // namespace internal

template <typename T>
const internal::ReferencePtr& RRef<T>::checked() const {
  if (!reference_) internal::throw_empty_reference();
  return reference_;
}
template <typename T>
bool RRef<T>::is_owner() const {
  return internal::is_here(checked());
}

template <typename T>
struct Codec<RRef<T>> {
  static void describe(TypeText& text) {
    text += "rref<";
    internal::describe_type<T>(text);
    text += ">";
  }
  static void write(Writer& writer, const RRef<T>& value) {
    internal::codec_of(writer).write_reference(writer, value.reference());
  }
  static RRef<T> read(Reader& reader) {
    return RRef<T>(internal::codec_of(reader).read_reference(reader));
  }
};

}  // namespace lockstep::inline v0::rpc
