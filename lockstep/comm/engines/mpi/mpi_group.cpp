#include "lockstep/comm/engines/mpi/mpi_group.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "lockstep/comm/engines/mpi/mpi_process.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::mpi {
namespace {

std::string stuck_text(const World& job, const std::vector<int>& members,
                       std::chrono::nanoseconds patience) {
  std::ostringstream text;
  text << "MPI_Comm_create_group on rank " << job.rank() << ", for the group of ranks "
       << joined(members, " ") << " of " << job.size() << ", has not returned for "
       << std::chrono::duration<double>(patience).count()
       << " s, though all of them had come to it: one has stopped or died since; ";
  return text.str();
}

// What MPI writes to until the call returns.
struct Creation {
  Comm comm;
  std::promise<int> code;
};

// On a thread that may stay in MPI for ever.
Comm create_aside(const World& job, Group group, std::chrono::nanoseconds patience,
                  const std::string& stuck) {
  const auto creation = std::make_shared<Creation>();
  std::future<int> code = creation->code.get_future();
  std::thread([creation, group, &library = job.library(), parent = job.comm()] {
    creation->code.set_value(library.call.comm_create_group(parent, group, 0, &creation->comm));
  }).detach();
  if (code.wait_for(patience) != std::future_status::ready) {
    stop_answering(stuck + "end this process");
    check_answering();
  }
  check_success(job.library(), code.get(), "MPI_Comm_create_group");
  return creation->comm;
}

// Says why the process stands still, unless it is destroyed in time.
class DelayReport {
 public:
  DelayReport(std::chrono::nanoseconds patience, const std::string& line)
      : thread_([this, patience, line] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, patience, [this] { return over_; })) return;
          log_error(line);
        }) {}
  ~DelayReport() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  DelayReport(const DelayReport&) = delete;
  DelayReport& operator=(const DelayReport&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace

Comm create_group(const World& job, const std::vector<int>& members, Deadline deadline) {
  const Library& library = job.library();
  const std::chrono::nanoseconds patience =
      std::clamp<std::chrono::nanoseconds>(deadline.remaining(), kLeastPatience,
                                           std::chrono::hours(24 * 365));  // what a clock can add
  const std::string stuck = stuck_text(job, members, patience);
  const std::lock_guard lock(call_mutex());
  check_answering();
  Group world;
  Group group;
  Comm comm;
  check_success(library, library.call.comm_group(job.comm(), &world), "MPI_Comm_group");
  check_success(
      library,
      library.call.group_incl(world, static_cast<int>(members.size()), members.data(), &group),
      "MPI_Group_incl");
  if (job.takes_any_thread()) {
    comm = create_aside(job, group, patience, stuck);
  } else {
    const DelayReport report(
        patience,
        stuck +
            "nothing can take this program's only thread for MPI out of the call; end the "
            "process (with MPI_THREAD_SERIALIZED the call throws instead)");
    check_success(library, library.call.comm_create_group(job.comm(), group, 0, &comm),
                  "MPI_Comm_create_group");
  }
  library.call.group_free(&group);
  library.call.group_free(&world);
  library.call.comm_set_errhandler(comm, library.handle.errors_return);
  return comm;
}

}  // namespace lockstep::inline v0::mpi
