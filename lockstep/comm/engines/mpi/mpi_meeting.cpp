#include "lockstep/comm/engines/mpi/mpi_meeting.h"

#include <algorithm>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/comm/engines/mpi/mpi_process.h"
#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::mpi {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1);

Timeout late(const std::string& what, Deadline deadline) {
  return Timeout(
      what + " through MPI did not end within " +
      std::to_string(static_cast<int>(deadline.timeout_seconds())) +
      " s: a rank of this job has not called init() or from_mpi(), or MPI does not reach its "
      "host");
}

// Memory that MPI may use until the operation is complete.
struct Exchange {
  explicit Exchange(size_t size) : text(size) {}
  std::vector<char> text;  // words of a fixed size, filled with zeros
  RequestHandle request;
};

// Waits for what `start(exchange)` has started.
template <typename Start>
void complete(const World& world, std::unique_ptr<Exchange>& exchange, const char* function,
              Deadline deadline, const Start& start) {
  const Functions& call = world.library().call;
  const auto check = [&](const char* what, int code) {
    if (code == kSuccess) return;
    give_up_finalizing();
    throw PeerLost(
        std::string(what) + " failed while the ranks met: " + world.library().error_text(code), -1);
  };
  {
    const std::lock_guard lock(call_mutex());
    check_answering();
    check(function, start(*exchange));
  }
  while (true) {
    int done = 0;
    {
      const std::lock_guard lock(call_mutex());
      check_answering();
      Status status;
      check("MPI_Test", call.test(&exchange->request, &done, &status));
    }
    if (done != 0) return;
    if (deadline.expired()) {
      give_up_finalizing();
      [[maybe_unused]] const Exchange* left_to_mpi = exchange.release();
      world.leave_to_mpi();
      throw late("the meeting", deadline);
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace

std::shared_ptr<const World> world_of_job(int rank, int size, Deadline deadline) {
  auto ready = std::make_shared<std::promise<std::shared_ptr<const World>>>();
  auto world = ready->get_future();
  std::thread([ready, rank, size] {
    try {
      ready->set_value(world_of_job(rank, size));
    } catch (...) {
      ready->set_exception(std::current_exception());
    }
  }).detach();
  if (world.wait_for(deadline.remaining()) != std::future_status::ready)
    throw late("MPI_Init", deadline);
  return world.get();
}

std::string word_of_rank_zero(const World& world, const std::string& word, Deadline deadline) {
  LOCKSTEP_CHECK(word.size() <= kMaxWord, "rank 0's word has room");
  auto exchange = std::make_unique<Exchange>(kMaxWord + 1);
  if (world.rank() == 0) std::copy(word.begin(), word.end(), exchange->text.begin());
  const Library& mpi = world.library();
  complete(world, exchange, "MPI_Ibcast", deadline, [&](Exchange& e) {
    return mpi.call.ibcast(e.text.data(), static_cast<int>(e.text.size()), mpi.handle.uint8, 0,
                           world.comm(), &e.request);
  });
  return {exchange->text.data()};
}

std::vector<std::string> words_of_all(const World& world, const std::string& word,
                                      Deadline deadline) {
  LOCKSTEP_CHECK(word.size() <= kMaxName, "a rank's word has room");
  constexpr size_t kRoom = kMaxName + 1;
  const auto size = static_cast<size_t>(world.size());
  // All ranks' words, and then this rank's own.
  auto exchange = std::make_unique<Exchange>((size + 1) * kRoom);
  std::copy(word.begin(), word.end(),
            exchange->text.begin() + static_cast<ptrdiff_t>(size * kRoom));
  const Library& mpi = world.library();
  complete(world, exchange, "MPI_Iallgather", deadline, [&](Exchange& e) {
    return mpi.call.iallgather(e.text.data() + size * kRoom, kRoom, mpi.handle.uint8, e.text.data(),
                               kRoom, mpi.handle.uint8, world.comm(), &e.request);
  });
  std::vector<std::string> words;
  for (size_t r = 0; r < size; ++r) words.emplace_back(exchange->text.data() + r * kRoom);
  return words;
}

}  // namespace lockstep::inline v0::mpi
