// Links: messages from one rank to another, each link with a stream of its own. Not a public
// header.
//
// On one stream a receive that waits for its message would keep the sends behind it from starting,
// and two ranks that have both posted a receive first would wait for ever. So each direction
// between two ranks has a stream. It is connected when it is first named, by steps that do not wait
// for the other rank: each call of advance() takes those that can be taken.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <string>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/nccl/nccl_library.h"
#include "lockstep/store/store.h"

namespace lockstep::nccl {

// A point in a stream: the Call::after of calls, and their end.
struct NcclMark {
  c10::Event event{c10::DeviceType::CUDA};
  uint64_t capture = 0;             // that it is part of; 0: none
  bool replay = false;              // stands for a replay of one,
  std::atomic<bool> given = false;  // which the device has
};

// A message on its way to the device.
struct Message {
  Call call;
  std::string text;
  std::shared_ptr<c10::Event> done;  // recorded behind it, once the device has it; null before
};

// One end of a link. Used by one thread at a time.
class Link {
 public:
  virtual ~Link() = default;

  // Messages come to the device in order.
  virtual std::shared_ptr<Message> add(const Call& call, std::string text) = 0;
  // Never waits, never throws: what goes wrong, check() says.
  virtual void advance() noexcept = 0;
  // Throws what went wrong: PeerLost, StoreError, LaunchError.
  void check() {
    if (error_) std::rethrow_exception(error_);
  }
  virtual void abort() noexcept = 0;

 protected:
  std::exception_ptr error_;
};

// To another rank, over a communicator of the two.
class NcclLink final : public Link {
 public:
  // Of one of the two ranks. Both give the same name, which is new to the store.
  NcclLink(std::shared_ptr<const Library> library, std::shared_ptr<Store> store, std::string name,
           c10::Device device, bool sends);
  // Ends what is under way on this rank.
  ~NcclLink() override;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  // A send on the sending rank's end, a receive on the other one.
  std::shared_ptr<Message> add(const Call& call, std::string text) override;
  void advance() noexcept override;
  void abort() noexcept override;

 private:
  enum class State { kNew, kConnecting, kReady, kSubmitting };

  void step();
  bool meet();
  bool settled();
  void submit(const Message& message);

  std::shared_ptr<const Library> nccl_;
  std::shared_ptr<Store> store_;
  std::string name_;
  c10::Device device_;
  bool sends_;
  State state_ = State::kNew;
  Comm comm_ = nullptr;
  Stream stream_ = nullptr;
  std::deque<std::shared_ptr<Message>> waiting_;
  std::chrono::steady_clock::time_point next_look_{};  // into the store
};

// To the rank itself: a copy on the device once a send and its receive are there.
class OwnLink final : public Link {
 public:
  OwnLink(std::shared_ptr<const Library> library, c10::Device device);
  ~OwnLink() override;
  OwnLink(const OwnLink&) = delete;
  OwnLink& operator=(const OwnLink&) = delete;

  std::shared_ptr<Message> add(const Call& call, std::string text) override;
  void advance() noexcept override;
  void abort() noexcept override;

 private:
  void copy(Message& send, Message& receive);

  std::shared_ptr<const Library> nccl_;
  c10::Device device_;
  Stream stream_ = nullptr;
  std::deque<std::shared_ptr<Message>> sends_, receives_;
};

}  // namespace lockstep::nccl
