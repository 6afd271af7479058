#include "lockstep/comm/groups/joining.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <future>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/comm/groups/giving_up.h"
#include "lockstep/comm/groups/making.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/process_state.h"

namespace lockstep::inline v0 {
namespace {

// The time for the store once the wait is over; its process may be stopped too.
constexpr auto kJoiningAnswer = std::chrono::seconds(2);

std::string joining_key(int rank) {
  return "joining/" + std::to_string(rank);
}

std::string joining_name(size_t rank, const JoiningPlace& place) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(place.pid) + ")";
}

}  // namespace

std::string encode(const JoiningPlace& place) {
  std::ostringstream text;
  text << place.step << ' ' << place.pid << ' ' << place.gave_up << ' ' << place.late << '\n'
       << place.host << '\n'
       << place.what;
  return text.str();
}

std::optional<JoiningPlace> decode_joining_place(const std::string& text) {
  JoiningPlace place;
  std::istringstream stream(text);
  if (!(stream >> place.step >> place.pid >> place.gave_up >> place.late)) return std::nullopt;
  stream.ignore();
  if (!std::getline(stream, place.host)) return std::nullopt;
  std::getline(stream, place.what);
  return place;
}

JoiningBlame blame_for_joining(const std::vector<std::optional<JoiningPlace>>& places, size_t self,
                               const std::function<std::string(int pid)>& stopped_by) {
  const JoiningPlace& own = places[self].value();
  const auto blame = [](size_t rank, std::string text) {
    return JoiningBlame{static_cast<int>(rank), std::move(text)};
  };
  for (size_t r = 0; r < places.size(); ++r) {
    if (r == self || !places[r] || places[r]->host != own.host) continue;
    const std::string by = stopped_by(places[r]->pid);
    if (!by.empty())
      return blame(
          r, joining_name(r, *places[r]) + " is stopped (" + by + ") while " + places[r]->what);
  }
  for (size_t r = 0; r < places.size(); ++r) {
    if (!places[r]) return blame(r, "rank " + std::to_string(r) + " has not come; was it started?");
  }
  const JoiningPlace* last = nullptr;
  size_t last_rank = 0;
  for (size_t r = 0; r < places.size(); ++r) {
    if (r == self || places[r]->gave_up || places[r]->step >= own.step) continue;
    if (last != nullptr && last->step <= places[r]->step) continue;
    last = &*places[r];
    last_rank = r;
  }
  if (last != nullptr)
    return blame(last_rank, joining_name(last_rank, *last) + " came no further than " + last->what);
  for (size_t r = 0; r < places.size(); ++r) {
    if (r == self || !places[r]->gave_up || places[r]->late < 0) continue;
    if (places[r]->late == static_cast<int>(self)) continue;
    return blame(static_cast<size_t>(places[r]->late), "rank " + std::to_string(r) +
                                                           " gave up waiting for rank " +
                                                           std::to_string(places[r]->late));
  }
  return {};
}

Joining::Joining(std::shared_ptr<trace::CallBoard> board, int board_rank, AtStep at_step)
    : board_(std::move(board)), board_rank_(board_rank), at_step_(std::move(at_step)) {
  place_.pid = ::getpid();
  board_->enter(board_rank_, static_cast<uint32_t>(place_.pid));
}

void Joining::meet_in(std::shared_ptr<Store> store, int rank, int size, int served_by) {
  store_ = std::move(store);
  rank_ = rank;
  size_ = size;
  served_by_ = served_by;
  place_.host = host_identity();
}

void Joining::step(const std::string& what) {
  ++place_.step;
  place_.what = what;
  board_->step(board_rank_, what);
  if (store_) tell_others();
  if (at_step_) at_step_(what);
}

void Joining::done() {
  board_->step(board_rank_, "");
}

void Joining::tell_others() {
  store_->set(joining_key(rank_), encode(place_));
}

JoiningBlame Joining::ask_store() {
  if (!store_) return {};
  // Runs on a thread of its own, because the store waits longer than this may.
  std::packaged_task<std::vector<std::optional<JoiningPlace>>()> ask(
      [store = store_, size = size_, rank = rank_, own = place_] {
        std::vector<std::optional<JoiningPlace>> places;
        for (int r = 0; r < size; ++r) {
          const auto text = store->try_get(joining_key(r));
          places.push_back(r == rank ? own : text ? decode_joining_place(*text) : std::nullopt);
        }
        return places;
      });
  auto answer = ask.get_future();
  std::thread(std::move(ask)).detach();
  if (answer.wait_for(kJoiningAnswer) != std::future_status::ready) {
    if (served_by_ < 0 || served_by_ == rank_) return {};
    return {served_by_, "rank " + std::to_string(served_by_) +
                            ", whose process serves the store, does not answer: it is stopped or "
                            "out of reach"};
  }
  const JoiningBlame blame =
      blame_for_joining(answer.get(), static_cast<size_t>(rank_), stopped_by);
  // For ranks that lose this one now: it is not to blame.
  place_.gave_up = true;
  place_.late = blame.rank;
  tell_others();
  return blame;
}

void Joining::fail() {
  JoiningBlame blame;
  try {
    throw;
  } catch (const RankFailed&) {  // it names the rank that holds this one up, and why
  } catch (...) {
    try {
      blame = ask_store();
    } catch (const std::exception&) {  // without the store the error has to suffice
    }
  }
  const auto told = [&](const std::exception& error) {
    return blame.text.empty() ? std::string(error.what())
                              : "init(): " + blame.text + "; on rank " + std::to_string(rank_) +
                                    ", while " + place_.what + ": " + error.what();
  };
  try {
    try {
      throw;
    } catch (const LateRank& error) {
      throw_failure(Failure::kTimeout, blame.rank >= 0 ? blame.rank : error.rank(), told(error));
    } catch (const Timeout& error) {
      throw_failure(Failure::kTimeout, blame.rank, told(error));
    } catch (const PeerLost& error) {
      throw PeerLost(told(error), blame.rank >= 0 ? blame.rank : error.rank());
    }
  } catch (...) {
    show_giving_up(*board_, board_rank_, std::current_exception(), {});
    throw;
  }
}

}  // namespace lockstep::inline v0
