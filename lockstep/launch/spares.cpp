#include "lockstep/launch/spares.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/launch/failure_report.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr auto kLookForExits = std::chrono::milliseconds(10);  // if there are no pidfds

struct Link {
  UniqueFd ours, theirs;
};

// A socket of messages: an order arrives whole or not at all.
Link make_link() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
    throw system_error("socketpair", errno);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::string last_line(Worker& worker) {
  for (OutputStream* stream : {&worker.err(), &worker.out()}) {
    stream->finish();
    const auto lines = stream->tail().lines();
    if (!lines.empty()) return lines.back();
  }
  return "";
}

}  // namespace

Spares::Spares(int count, Sentinel& sentinel, int first_place, Effects effects, Time now)
    : sentinel_(sentinel), effects_(std::move(effects)), schedule_(count, now) {
  for (int i = count; i > 0; --i) free_places_.push_back(first_place + i - 1);
}

void Spares::watch(PollSet& polls, Time now, int needed) {
  polls.wake_at(schedule_.next_time(needed));
  for (const auto& spare : spares_) {
    const int exit_fd = spare->worker->process().exit_fd();
    polls.add(exit_fd, POLLIN);
    if (exit_fd < 0) polls.wake_at(now + kLookForExits);
    polls.add(spare->link.get(), POLLIN,
              [this, one = spare.get()] { listen(*one, std::chrono::steady_clock::now()); });
  }
}

void Spares::listen(Spare& spare, Time now) {
  char byte = 0;
  const ssize_t n = ::recv(spare.link.get(), &byte, 1, MSG_DONTWAIT);
  if (n > 0) {
    if (!spare.waiting_since) spare.waiting_since = now;
    program_waits_ = true;
  } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
    // No process of it is left that could become a rank.
    spare.link.reset();
    spare.worker->process().signal_group(SIGKILL);
  }
}

void Spares::tend(Time now, int needed) {
  for (const auto& spare : spares_) {
    if (spare->worker->process().poll()) lose(*spare, now);
  }
  std::erase_if(spares_, [](const auto& spare) { return !spare->worker; });
  if (schedule_.take_start(now, needed)) start(now);
}

void Spares::start(Time now) {
  try {
    Link link = make_link();
    auto worker = effects_.start(link.theirs.get());
    const int place = free_places_.back();
    free_places_.pop_back();
    sentinel_.watch(place, worker->process().pid());
    spares_.push_back(std::make_unique<Spare>(
        Spare{std::move(worker), std::move(link.ours), place, std::nullopt}));
  } catch (const Error& error) {
    schedule_.on_lost(now, std::nullopt);
    effects_.say(spare_not_started_line(error.what(), schedule_.given_up()));
  }
}

void Spares::lose(Spare& spare, Time now) {
  schedule_.on_lost(now, spare.waiting_since);
  Worker& worker = *spare.worker;
  effects_.say(spare_lost_line({.status = *worker.process().poll(),
                                .pid = worker.process().pid(),
                                .waited = spare.waiting_since.has_value(),
                                .last_line = last_line(worker),
                                .is_last = schedule_.given_up()}));
  end(spare);
}

// Its children have no rank to wait for.
void Spares::end(Spare& spare) {
  spare.link.reset();
  spare.worker->process().signal_group(SIGKILL);
  sentinel_.forget(spare.place);
  free_places_.push_back(spare.place);
  if (spare.worker->process().group_alive()) effects_.leave(std::move(spare.worker));
  spare.worker.reset();
}

// A waiting spare is preferred to one that is still starting.
Spares::Spare* Spares::best() {
  Spare* found = nullptr;
  for (const auto& spare : spares_) {
    if (!spare->link || !spare->worker || spare->worker->process().poll()) continue;
    listen(*spare, std::chrono::steady_clock::now());
    if (!spare->link || (!program_waits_ && !spare->waiting_since)) continue;
    if (found == nullptr || (spare->waiting_since && !found->waiting_since)) found = spare.get();
  }
  return found;
}

std::unique_ptr<Worker> Spares::give(const SpareOrder& order, int rank, Time now) {
  const std::string message = encode(order);
  while (Spare* spare = best()) {
    const ssize_t sent =
        ::send(spare->link.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    spare->link.reset();
    if (sent < 0) continue;  // it has ended, or is ending: tend() notices it
    sentinel_.watch(rank, spare->worker->process().pid());
    sentinel_.forget(spare->place);
    free_places_.push_back(spare->place);
    schedule_.on_taken(now);
    auto worker = std::move(spare->worker);
    std::erase_if(spares_, [spare](const auto& one) { return one.get() == spare; });
    return worker;
  }
  return nullptr;
}

void Spares::dismiss() {
  for (const auto& spare : spares_) end(*spare);
  spares_.clear();
}

}  // namespace lockstep::inline v0::launch
