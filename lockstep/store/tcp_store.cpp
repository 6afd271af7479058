#include "lockstep/store/tcp_store.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/store/key_table.h"
#include "lockstep/store/store_protocol.h"
#include "lockstep/wire/challenge.h"
#include "lockstep/wire/frames.h"

namespace lockstep::inline v0 {
namespace {

// The time until an operation that never waits for a key, or a cancelled wait, must be answered.
constexpr auto kAnswerTimeout = std::chrono::seconds(60);
constexpr Deadline::Duration kCancelTimeout = std::chrono::seconds(5);
constexpr Deadline::Duration kCancelAtLeast = std::chrono::milliseconds(500);

// A short wait must not become a long one if the server is stopped.
Deadline to_cancel(Deadline waited) {
  return Deadline::after(
      std::clamp<Deadline::Duration>(waited.timeout() / 10, kCancelAtLeast, kCancelTimeout));
}

}  // namespace

// Requests of several threads share the connection. The waiting threads take turns as the reader:
// one polls the socket and distributes the answers by identifier, the others sleep until their
// answer has arrived or there is no reader. No thread is needed besides the callers'.
class TcpStore::Impl {
 public:
  Impl(const HostPort& server, const Secret& secret, Deadline deadline)
      : name_(server.to_string()), fd_(connect_tcp(server, deadline)) {
    try {
      wire::authenticate_as_client(fd_.get(), secret, "store", deadline);
    } catch (const StoreError& error) {
      throw StoreError("store at " + name_ + ": " + error.what());
    } catch (const PeerLost&) {
      throw StoreError("store at " + name_ +
                       ": the server closed the connection before the challenge was over");
    } catch (const Timeout& error) {
      throw Timeout("store at " + name_ +
                    ": the server accepted the connection but did not answer: " + error.what());
    }
  }

  // Makes a call that does not wait for a key.
  StoreResponse call(StoreRequest request) {
    return call(std::move(request), Deadline::after(kAnswerTimeout));
  }
  StoreResponse call(StoreRequest request, Deadline deadline) {
    const uint64_t id = send(request);
    auto response = await(id, deadline);
    if (!response) {
      forget(id);
      std::ostringstream text;
      text << "store at " << name_ << ": no answer about key '" << request.keys.front()
           << "' within " << deadline.timeout_seconds()
           << " s; its process is stopped or unreachable";
      throw Timeout(text.str());
    }
    return checked(std::move(*response));
  }

  // Makes a call that the server parks. At the deadline it is cancelled, and the server's last
  // answer names the missing key, or was already on its way.
  StoreResponse call_parked(StoreRequest request, Deadline deadline) {
    const uint64_t id = send(request);
    auto response = await(id, deadline);
    if (!response) {
      StoreRequest cancel;
      cancel.id = id;
      cancel.op = StoreOp::kCancel;
      transmit(encode(cancel));
      response = await(id, to_cancel(deadline));
    }
    if (!response) {
      forget(id);
      throw Timeout(std::string(missing_key(request.keys.front(), deadline).what()) +
                    " (and the store at " + name_ + " does not answer)");
    }
    if (response->status == StoreStatus::kCancelled) throw missing_key(response->value, deadline);
    return checked(std::move(*response));
  }

 private:
  uint64_t send(StoreRequest& request) {
    {
      const MutexLock lock(mutex_);
      request.id = ++last_id_;
      pending_.emplace(request.id, std::nullopt);
    }
    try {
      transmit(encode(request));
    } catch (...) {
      forget(request.id);
      throw;
    }
    return request.id;
  }

  void transmit(const std::string& frame) {
    const MutexLock lock(send_mutex_);
    {
      const MutexLock state(mutex_);
      if (!broken_.empty()) throw StoreError(broken_);
    }
    try {
      write_exact(fd_.get(), frame.data(), frame.size(), Deadline::after(kAnswerTimeout));
    } catch (const Error& error) {
      // Part of a frame may be lost, so this connection can no longer be used.
      throw StoreError(break_connection(error.what()));
    }
  }

  // Returns the answer to request `id`, or nullopt at the deadline.
  std::optional<StoreResponse> await(uint64_t id, Deadline deadline) {
    MutexLock lock(mutex_);
    while (true) {
      const auto it = pending_.find(id);
      if (it->second) {
        StoreResponse response = std::move(*it->second);
        pending_.erase(it);
        return response;
      }
      if (!broken_.empty()) {
        pending_.erase(it);
        throw StoreError(broken_);
      }
      if (deadline.expired()) return std::nullopt;
      if (reading_) {
        changed_.wait_until(lock, deadline.time());
        continue;
      }
      reading_ = true;
      lock.unlock();
      std::string failure;
      std::vector<StoreResponse> arrived;
      try {
        arrived = receive(deadline);
      } catch (const std::exception& error) {
        failure = error.what();
      }
      if (!failure.empty()) break_connection(failure);
      lock.lock();
      reading_ = false;
      for (StoreResponse& response : arrived) {
        if (const auto waiting = pending_.find(response.id); waiting != pending_.end()) {
          waiting->second = std::move(response);
        }
      }
      changed_.notify_all();
    }
  }

  // Waits for bytes until the deadline, and returns the complete answers. Only the reader calls it.
  std::vector<StoreResponse> receive(Deadline deadline) {
    std::vector<StoreResponse> arrived;
    pollfd waiting{fd_.get(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, deadline.poll_ms());
    if (ready < 0 && errno != EINTR) throw system_error("poll", errno);
    if (ready <= 0) return arrived;
    const ssize_t n = ::recv(fd_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) {
      throw PeerLost(
          "the server closed the connection: the process that serves the store (the launcher, or "
          "rank 0) ended",
          -1);
    }
    if (n < 0 && errno != EAGAIN && errno != EINTR) throw system_error("recv", errno);
    if (n < 0) return arrived;
    incoming_.append({buffer_.data(), static_cast<size_t>(n)});
    while (const auto body = incoming_.next()) arrived.push_back(decode_store_response(*body));
    return arrived;
  }

  // Every later call throws StoreError with the first reason.
  std::string break_connection(const std::string& reason) {
    const MutexLock lock(mutex_);
    if (broken_.empty()) broken_ = "store at " + name_ + ": " + reason;
    changed_.notify_all();
    return broken_;
  }

  void forget(uint64_t id) {
    const MutexLock lock(mutex_);
    pending_.erase(id);
  }

  StoreResponse checked(StoreResponse response) {
    if (response.status == StoreStatus::kError) throw StoreError(response.value);
    return response;
  }

  const std::string name_;
  const UniqueFd fd_;
  Mutex mutex_;
  Mutex send_mutex_ LOCKSTEP_ACQUIRED_BEFORE(mutex_);  // keeps frames in one piece
  ConditionVariable changed_;
  std::map<uint64_t, std::optional<StoreResponse>> pending_ LOCKSTEP_GUARDED_BY(mutex_);
  uint64_t last_id_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::string broken_ LOCKSTEP_GUARDED_BY(mutex_);    // empty: the connection works
  bool reading_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // some thread is in receive()
  wire::FrameReader incoming_{kMaxStoreFrame};        // used by the reader
  std::array<char, 65536> buffer_;                    // used by the reader
};

namespace {

StoreRequest request_for(StoreOp op, const std::string& key) {
  check_store_key(key);
  StoreRequest request;
  request.op = op;
  request.keys = {key};
  return request;
}

}  // namespace

TcpStore::TcpStore(const HostPort& server, const Secret& secret, Deadline deadline)
    : impl_(std::make_unique<Impl>(server, secret, deadline)) {}

TcpStore::~TcpStore() = default;

void TcpStore::set(const std::string& key, const std::string& value) {
  offer(key, value, Deadline::after(kAnswerTimeout));
}

void TcpStore::offer(const std::string& key, const std::string& value, Deadline answer) {
  StoreRequest request = request_for(StoreOp::kSet, key);
  check_store_value(key, value);
  request.value = value;
  impl_->call(std::move(request), answer);
}

std::string TcpStore::get(const std::string& key, Deadline deadline) {
  return impl_->call_parked(request_for(StoreOp::kGet, key), deadline).value;
}

std::optional<std::string> TcpStore::try_get(const std::string& key) {
  return peek(key, Deadline::after(kAnswerTimeout));
}

std::optional<std::string> TcpStore::peek(const std::string& key, Deadline answer) {
  StoreResponse response = impl_->call(request_for(StoreOp::kTryGet, key), answer);
  if (response.status == StoreStatus::kAbsent) return std::nullopt;
  return std::move(response.value);
}

int64_t TcpStore::add(const std::string& key, int64_t delta) {
  StoreRequest request = request_for(StoreOp::kAdd, key);
  request.delta = delta;
  return impl_->call(std::move(request)).number;
}

std::string TcpStore::compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) {
  StoreRequest request = request_for(StoreOp::kCompareSet, key);
  check_store_value(key, desired);
  check_store_value(key, expected);
  request.value = desired;
  request.expected = expected;
  return impl_->call(std::move(request)).value;
}

void TcpStore::wait(std::span<const std::string> keys, Deadline deadline) {
  if (keys.empty()) return;
  StoreRequest request;
  request.op = StoreOp::kWait;
  for (const std::string& key : keys) {
    check_store_key(key);
    request.keys.push_back(key);
  }
  impl_->call_parked(std::move(request), deadline);
}

bool TcpStore::remove(const std::string& key) {
  return impl_->call(request_for(StoreOp::kRemove, key)).number == 1;
}

}  // namespace lockstep::inline v0
