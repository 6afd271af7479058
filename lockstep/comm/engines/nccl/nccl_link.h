// Links: messages from one rank to another; each link has a stream of its own. Not a public header.
//
// On one stream, a receive that waits for its message would keep the sends behind it from starting,
// and two ranks that have both posted a receive first would wait for ever. Each direction between
// two ranks therefore has its own stream. It is connected when it is first used, by steps that do
// not wait for the other rank: each call of advance() takes the steps that are possible.
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

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/nccl/nccl_library.h"
#include "lockstep/store/store.h"

namespace lockstep::inline v0::nccl {

// A point in a stream: the Call::after of calls, and their completion.
struct NcclMark {
  c10::Event event{c10::DeviceType::CUDA};
  uint64_t capture = 0;             // the capture that it is part of; 0: none
  bool replay = false;              // stands for a replay of a captured graph,
  std::atomic<bool> given = false;  // which the device has been given
};

// A message on its way to the device.
struct Message {
  Call call;
  std::string text;
  // Recorded behind the message once the device has it; null before.
  std::shared_ptr<c10::Event> done;
};

// One end of a link.
// Thread-safety: one thread at a time.
class Link {
 public:
  virtual ~Link() = default;

  // Adds a message. Messages come to the device in order.
  virtual std::shared_ptr<Message> add(const Call& call, std::string text) = 0;
  // Never waits or throws; check() reports errors.
  virtual void advance() noexcept = 0;
  // Throws the link's error: PeerLost, StoreError, LaunchError.
  void check() {
    if (error_) std::rethrow_exception(error_);
  }
  virtual void abort() noexcept = 0;

 protected:
  std::exception_ptr error_;
};

// A link to another rank, over a communicator of the two ranks.
class NcclLink final : public Link {
 public:
  // Called on one of the two ranks. Both give the same name, which is new to the store.
  NcclLink(std::shared_ptr<const Library> library, std::shared_ptr<Store> store, std::string name,
           c10::Device device, bool sends);
  // Ends this rank's pending messages.
  ~NcclLink() override;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  // Sends are added on the sending rank's end, receives on the other end.
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

// A link of the rank to itself: a copy on the device once a send and its receive are there.
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

}  // namespace lockstep::inline v0::nccl
