#include "lockstep/comm/engines/nccl/nccl_link.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <cstring>
#include <optional>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::nccl {
namespace {

// The store may be on another host.
constexpr auto kLinkLook = std::chrono::milliseconds(1);

Stream make_stream(const Library& library, c10::Device device) {
  const c10::DeviceGuard guard(device);
  Stream stream = nullptr;
  if (library.cuda.stream_create_with_flags(&stream, kNonBlocking) != 0)
    throw LaunchError("CUDA made no stream on " + device.str());
  return stream;
}

void come_after(const Call& call, c10::Stream stream) {
  if (call.after) static_cast<NcclMark*>(call.after.get())->event.block(stream);
}

size_t bytes_of(const Call& call) {
  return static_cast<size_t>(call.count) * c10::elementSize(call.dtype);
}

std::shared_ptr<c10::Event> event_after(c10::Stream stream) {
  auto event = std::make_shared<c10::Event>(c10::DeviceType::CUDA);
  event->record(stream);
  return event;
}

std::exception_ptr aborted(const std::deque<std::shared_ptr<Message>>& waiting) {
  return std::make_exception_ptr(
      PeerLost((waiting.empty() ? "messages over nccl" : waiting.front()->text) +
                   ": the communicator was aborted",
               -1));
}

}  // namespace

NcclLink::NcclLink(std::shared_ptr<const Library> library, std::shared_ptr<Store> store,
                   std::string name, c10::Device device, bool sends)
    : nccl_(std::move(library)),
      store_(std::move(store)),
      name_(std::move(name)),
      device_(device),
      sends_(sends),
      stream_(make_stream(*nccl_, device_)) {}

NcclLink::~NcclLink() {
  abort();
  nccl_->cuda.stream_destroy(stream_);
}

std::shared_ptr<Message> NcclLink::add(const Call& call, std::string text) {
  auto message = std::make_shared<Message>(Message{call, std::move(text), nullptr});
  waiting_.push_back(message);
  advance();
  return message;
}

void NcclLink::abort() noexcept {
  if (comm_ != nullptr) nccl_->call.comm_abort(comm_);
  comm_ = nullptr;
  if (!error_) error_ = aborted(waiting_);
}

void NcclLink::advance() noexcept {
  if (error_) return;
  try {
    const c10::DeviceGuard guard(device_);
    step();
  } catch (...) {
    error_ = std::current_exception();
  }
}

void NcclLink::step() {
  if (state_ == State::kNew && !waiting_.empty() && meet()) state_ = State::kConnecting;
  if (state_ == State::kConnecting && settled()) state_ = State::kReady;
  if (state_ == State::kReady && !settled()) return;  // or throws the other rank's failure
  while (!waiting_.empty() && (state_ == State::kReady || state_ == State::kSubmitting)) {
    Message& message = *waiting_.front();
    if (state_ == State::kReady) submit(message);
    // The first message connects the ends, and is pending until the other rank has called too.
    state_ = State::kSubmitting;
    if (!settled()) return;
    message.done = event_after(as_stream(stream_, device_));
    waiting_.pop_front();
    state_ = State::kReady;
  }
}

// Whether this end knows the key by which the two meet.
bool NcclLink::meet() {
  UniqueId id{};
  if (sends_) {
    if (nccl_->call.get_unique_id(&id) != kSuccess)
      throw LaunchError("ncclGetUniqueId failed; NCCL_DEBUG=INFO says why");
    store_->set(name_, std::string(id.bytes, sizeof id.bytes));
  } else {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_look_) return false;
    next_look_ = now + kLinkLook;
    const std::optional<std::string> text = store_->try_get(name_);
    if (!text) return false;
    if (text->size() != sizeof id.bytes) throw StoreError("the sending rank published no NCCL id");
    std::memcpy(id.bytes, text->data(), sizeof id.bytes);
  }
  Config config;
  const Result result = nccl_->call.comm_init_rank_config(&comm_, 2, id, sends_ ? 0 : 1, &config);
  if (result != kSuccess && result != kInProgress)
    throw PeerLost(waiting_.front()->text +
                       " could not connect its two ranks: " + nccl_->call.error_string(result),
                   -1);
  return true;
}

bool NcclLink::settled() {
  Result result = kSuccess;
  nccl_->call.comm_get_async_error(comm_, &result);
  if (result == kInProgress) return false;
  if (result != kSuccess)
    throw PeerLost((waiting_.empty() ? std::string("messages") : waiting_.front()->text) +
                       " failed: " + nccl_->call.error_string(result) + "; a rank is gone",
                   -1);
  return true;
}

void NcclLink::submit(const Message& message) {
  const Call& call = message.call;
  come_after(call, as_stream(stream_, device_));
  const Result result =
      sends_ ? nccl_->call.send(call.input, bytes_of(call), kUint8, 1, comm_, stream_)
             : nccl_->call.recv(call.output, bytes_of(call), kUint8, 0, comm_, stream_);
  if (result != kSuccess && result != kInProgress)
    throw PeerLost(message.text + " failed: " + nccl_->call.error_string(result), -1);
}

OwnLink::OwnLink(std::shared_ptr<const Library> library, c10::Device device)
    : nccl_(std::move(library)), device_(device), stream_(make_stream(*nccl_, device_)) {}

OwnLink::~OwnLink() {
  nccl_->cuda.stream_destroy(stream_);
}

std::shared_ptr<Message> OwnLink::add(const Call& call, std::string text) {
  auto message = std::make_shared<Message>(Message{call, std::move(text), nullptr});
  (call.op == Op::kSend ? sends_ : receives_).push_back(message);
  advance();
  return message;
}

void OwnLink::advance() noexcept {
  try {
    while (!error_ && !sends_.empty() && !receives_.empty()) {
      copy(*sends_.front(), *receives_.front());
      sends_.pop_front();
      receives_.pop_front();
    }
  } catch (...) {
    error_ = std::current_exception();
  }
}

void OwnLink::copy(Message& send, Message& receive) {
  const c10::Stream stream = as_stream(stream_, device_);
  const c10::StreamGuard guard(stream);
  come_after(send.call, stream);
  come_after(receive.call, stream);
  const auto bytes = [&](std::byte* data) {
    return at::from_blob(data, {static_cast<int64_t>(bytes_of(send.call))},
                         at::TensorOptions(device_).dtype(at::kByte));
  };
  if (bytes_of(send.call) > 0)
    bytes(receive.call.output).copy_(bytes(const_cast<std::byte*>(send.call.input)), true);
  send.done = receive.done = event_after(stream);
}

void OwnLink::abort() noexcept {
  if (!error_) error_ = aborted(sends_.empty() ? receives_ : sends_);
}

}  // namespace lockstep::inline v0::nccl
