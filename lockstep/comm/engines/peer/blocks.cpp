#include "lockstep/comm/engines/peer/blocks.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/comm/engines/peer/retired.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/secret.h"

namespace lockstep::inline v0::peer {
namespace {

bool all_closed(const Seats& seats) {
  for (int r = 0; r < seats.size(); ++r)
    if (seats.of(r).closed.load(std::memory_order_acquire) == 0) return false;
  return true;
}

Call meeting_call() {
  Call call;
  call.note = {1, "connecting over peer"};
  return call;
}

}  // namespace

uint64_t own_process() {
  static const uint64_t kWord = random_word();
  return kWord;
}

Blocks::Blocks(c10::Device device, int rank, int size, int64_t slot_bytes)
    : device_(device), rank_(rank), slot_bytes_(slot_bytes), ranks_(static_cast<size_t>(size)) {}

std::unique_ptr<Blocks> Blocks::meet(Backend& host, c10::Device device, int rank, int size,
                                     int64_t slot_bytes, Deadline deadline) {
  free_what_is_closed();
  std::unique_ptr<Blocks> blocks(new Blocks(device, rank, size, slot_bytes));
  const c10::DeviceGuard guard(device);
  blocks->seats_ = {host.allocate_shared(static_cast<int64_t>(sizeof(Seat)) * size), size};
  if (!blocks->seats_)
    throw LaunchError("backend peer: " + host.capabilities().backend +
                      " has no memory that ranks share");
  // Afterwards every rank has the memory, filled with zeros.
  host.run(meeting_call(), deadline.remaining());
  const bool processes = host.capabilities().processes;
  blocks->agree(host, deadline, kShow, [&] { blocks->share(processes); });
  blocks->agree(host, deadline, kOpen, [&] { blocks->open(); });
  blocks->symmetric_ = std::make_shared<Symmetric>(blocks->cuda_, device, rank, blocks->seats_);
  return blocks;
}

// All ranks take the step, or all throw. Each step has its own field for errors: a rank that still
// reads must not find an error that a faster rank writes in the next step.
void Blocks::agree(Backend& host, Deadline deadline, MeetingStep which,
                   const std::function<void()>& step) {
  const auto text_of = [](int rank, const char* error) {
    return "backend peer: rank " + std::to_string(rank) +
           " cannot share its device's memory with the others of this host (" + error +
           "); CUDA IPC wants devices that reach each other, and of containers that they share "
           "the host's IPC and process name spaces; nccl does without, and so does shm, through "
           "pinned memory";
  };
  char* const own = seats_.of(rank_).errors[which];
  try {
    step();
  } catch (const LaunchError& error) {
    std::snprintf(own, sizeof Seat::errors[which], "%s", error.what());
  }
  host.run(meeting_call(), deadline.remaining());
  if (*own != '\0') throw LaunchError(text_of(rank_, own));
  for (int r = 0; r < seats_.size(); ++r) {
    const char* const error = seats_.of(r).errors[which];
    if (*error != '\0') throw LaunchError(text_of(r, error));
  }
}

void Blocks::share(bool processes) {
  Seat& seat = seats_.of(rank_);
  Rank& own = ranks_[static_cast<size_t>(rank_)];
  seat.process = own_process();
  seat.device = device_.index();
  seat.block.data = own.data = cuda_.allocate(static_cast<size_t>(slot_bytes_) * kSlots);
  if (processes) seat.block.handle = cuda_.handle_of(own.data);
  for (int mark = 0; mark < kMarks; ++mark) {
    for (int slot = 0; slot < kSlots; ++slot) {
      seat.events[mark][slot] = own.events[mark][slot] = cuda_.make_event(processes);
      if (processes) seat.event_handles[mark][slot] = cuda_.handle_of_event(own.events[mark][slot]);
    }
  }
}

void Blocks::open() {
  for (int r = 0; r < seats_.size(); ++r) {
    if (r == rank_) continue;
    const Seat& seat = seats_.of(r);
    Rank& rank = ranks_[static_cast<size_t>(r)];
    if (seat.process == own_process()) {
      cuda_.reach(seat.device);
      rank.data = seat.block.data;
      std::memcpy(rank.events, seat.events, sizeof rank.events);
      continue;
    }
    rank.opened = true;
    rank.data = cuda_.open(seat.block.handle);
    for (int mark = 0; mark < kMarks; ++mark)
      for (int slot = 0; slot < kSlots; ++slot)
        rank.events[mark][slot] = cuda_.open_event(seat.event_handles[mark][slot]);
  }
}

void Blocks::destroy_events(const CudaIpc& cuda, const Rank& rank) {
  for (const auto& events : rank.events)
    for (CudaEvent event : events)
      if (event != nullptr) cuda.destroy(event);
}

Blocks::~Blocks() {
  if (!seats_) return;
  try {
    const c10::DeviceGuard guard(device_);
    for (const Rank& rank : ranks_) {
      if (!rank.opened) continue;
      destroy_events(cuda_, rank);
      if (rank.data != nullptr) cuda_.close(rank.data);
    }
    seats_.of(rank_).closed.store(1, std::memory_order_release);
    retire({.is_closed = [seats = seats_] { return all_closed(seats); },
            .free =
                [cuda = cuda_, device = device_, own = ranks_[static_cast<size_t>(rank_)]] {
                  const c10::DeviceGuard there(device);
                  destroy_events(cuda, own);
                  if (own.data != nullptr) cuda.free(own.data);
                }});
  } catch (const std::exception&) {  // the device has failed, and its memory with it
  }
}

void Blocks::record(Mark mark, int64_t window, const c10::Stream& stream) {
  cuda_.record(event(rank_, mark, window), stream);
}

void Blocks::wait_for_all(Mark mark, int64_t window, const c10::Stream& stream) {
  for (int r = 0; r < seats_.size(); ++r) cuda_.wait(stream, event(r, mark, window));
}

void Blocks::leave() noexcept {
  seats_.of(rank_).left.store(1, std::memory_order_release);
}

std::optional<int> Blocks::lost_rank(const Backend& host) const {
  for (int r = 0; r < seats_.size(); ++r) {
    // The order matters: a leaving rank first sets its flag.
    const bool gone = r != rank_ && host.lost(r);
    if (gone && seats_.of(r).left.load(std::memory_order_acquire) == 0) return r;
  }
  return std::nullopt;
}

void Blocks::record_taken(int64_t window, const c10::Stream& stream) {
  record(Mark::kTaken, window, stream);
  seats_.of(rank_).taken.fetch_add(1, std::memory_order_release);
}

bool Blocks::others_have_taken(const Backend& host, int64_t windows) {
  for (int r = 0; r < seats_.size(); ++r) {
    const Seat& seat = seats_.of(r);
    if (r == rank_ || host.lost(r) || seat.left.load(std::memory_order_acquire) != 0) continue;
    if (seat.taken.load(std::memory_order_acquire) < windows) return false;
    for (int64_t slot = 0; slot < std::min<int64_t>(windows, kSlots); ++slot)
      if (!cuda_.reached(event(r, Mark::kTaken, slot))) return false;
  }
  return true;
}

}  // namespace lockstep::inline v0::peer
