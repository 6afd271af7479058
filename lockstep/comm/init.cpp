#include "lockstep/comm/init.h"

#include <cstdio>

#include "lockstep/comm/engines/mpi/mpi_process.h"
#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/comm/groups/connection.h"
#include "lockstep/comm/groups/reformation.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/secret.h"
#include "lockstep/device/current.h"
#include "lockstep/launch/spare_wait.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/trace/call_board.h"

namespace lockstep::inline v0 {
namespace {

// For jobs that replace dead ranks: how this rank meets the others, the first time and later.
class JobMeeting : public std::enable_shared_from_this<JobMeeting> {
 public:
  JobMeeting(const std::shared_ptr<Store>& store, const Topology& topology, Connection connection,
             CommunicatorOptions communicator, const std::string& life)
      : reformation_(store, topology.rank, topology.size,
                     life + "." + std::to_string(random_word()),
                     [board = communicator.board, topology](int rank) {
                       // The ranks of this host.
                       const int local = rank - topology.rank + topology.local_rank;
                       return local >= 0 && local < topology.local_size &&
                              board->presence(local) == trace::CallBoard::Presence::kEnded;
                     }),
        topology_(topology),
        connection_(std::move(connection)),
        communicator_(std::move(communicator)) {}

  Communicator meet(Deadline deadline, const Joining::AtStep& say = nullptr) {
    std::optional<Communicator> comm;
    reformation_.form(
        [&](int64_t number, const std::shared_ptr<Store>& store, Deadline limit) {
          comm.reset();
          CommunicatorOptions communicator = communicator_;
          communicator.generation = number;
          communicator.reform = [self = shared_from_this()](Deadline until) {
            return self->meet(until);
          };
          comm.emplace(connect(store, topology_, connection_, std::move(communicator), limit, say));
        },
        deadline);
    return *std::move(comm);
  }

 private:
  Reformation reformation_;
  Topology topology_;
  Connection connection_;
  CommunicatorOptions communicator_;
};

}  // namespace

Communicator init(const InitOptions& options) {
  return init_by_steps(options, nullptr);
}

Communicator init_by_steps(const InitOptions& options, Joining::AtStep at_step) {
  launch::wait_if_spare();
  const EnvLookup env = process_env();
  // The agent reads its ranks through pipes, and stdio would write to them in blocks of 4 KiB.
  if (env("LOCKSTEP_STORE")) std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const Deadline deadline = Deadline::after(options.timeout);
  const Meeting meeting = decide_meeting(options, env);
  Topology topology = meeting.topology;
  const Connection connection{.backend = options.backend, .timeout = options.timeout};
  CommunicatorOptions communicator{.timeout = options.timeout};
  // A bad device is bad for any local rank, and is reported before the ranks meet.
  communicator.device = chosen_device(options.device, options.backend, env, topology.local_rank);
  if (auto board = trace::CallBoard::inherit(env); board && topology.local_rank < board->ranks()) {
    communicator.board = std::make_shared<trace::CallBoard>(std::move(*board));
  } else {
    keep_own_trace(communicator, topology, env);
  }
  if (meeting.kind == Meeting::Kind::kMpi) {
    // MPI is initialised, so MPI_Finalize would wait at exit for ranks that have ended.
    communicator.on_broken = [then = std::move(communicator.on_broken)](const std::string& reason) {
      if (then) then(reason);
      mpi::give_up_finalizing();
    };
  }

  const bool outlived =
      meeting.kind == Meeting::Kind::kAgent || meeting.kind == Meeting::Kind::kFile;
  Joining joining(communicator.board,
                  communicator.board_rank >= 0 ? communicator.board_rank : topology.local_rank,
                  std::move(at_step));
  try {
    joining.step("reaching the job's store");
    const Rendezvous rendezvous = open_store(meeting, options, env, deadline);
    std::shared_ptr<Store> store;
    if (rendezvous.store) {
      refuse_to_join_again(*rendezvous.store, meeting);
      // A rank's k-th init() meets the k-th init() of the others, also in a process that replaces
      // it.
      const std::string life = meeting.replaces ? "." + meeting.life : "";
      const int64_t turn = rendezvous.store->add("init/" + std::to_string(topology.rank) + life, 1);
      store = std::make_shared<PrefixStore>("world" + std::to_string(turn), rendezvous.store);
      joining.meet_in(store, topology.rank, topology.size, outlived ? -1 : 0);
      joining.step("meeting the other ranks in the store");
      if (!meeting.topology_known) {
        topology = find_topology(*store, topology.rank, topology.size, deadline);
        communicator.device =
            chosen_device(options.device, options.backend, env, topology.local_rank);
      }
      struct Keep {
        std::shared_ptr<Store> store;
        std::shared_ptr<void> server;
      };
      communicator.keep = std::make_shared<Keep>(Keep{rendezvous.store, rendezvous.keep});
    }
    if (communicator.device) device::set_current(*communicator.device);
    const auto say = [&joining](const std::string& what) { joining.step(what); };
    if (meeting.replaces && store && topology.size > 1) {
      if (choose_backend(options.backend, env, topology) == "peer")
        throw InvalidArgument(
            "backend peer: what a device waits for from a rank that died never comes, so that no "
            "rank can take its place; leave out --on-failure replace, or take another backend");
      joining.step("meeting the other ranks, some of which may have been started anew");
      Communicator comm =
          std::make_shared<JobMeeting>(std::make_shared<PrefixStore>("generations", store),
                                       topology, connection, std::move(communicator), meeting.life)
              ->meet(deadline, say);
      joining.done();
      return comm;
    }
    Communicator comm =
        connect(store, topology, connection, std::move(communicator), deadline, say);
    // A rank 0 that serves the store and ends at once must not take it from ranks that still wait.
    joining.step("leaving the store");
    if (store) leave_store(*store, topology.rank, topology.size, deadline);
    joining.done();
    return comm;
  } catch (...) {
    joining.fail();
  }
}

}  // namespace lockstep::inline v0
