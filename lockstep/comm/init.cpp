#include "lockstep/comm/init.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <numeric>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/engines/mpi/mpi_process.h"
#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/comm/groups/making.h"
#include "lockstep/comm/groups/reformation.h"
#include "lockstep/comm/internal/engines.h"
#include "lockstep/comm/internal/group_maker.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/secret.h"
#include "lockstep/device/choose.h"
#include "lockstep/device/current.h"
#include "lockstep/launch/spare_wait.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/trace/call_board.h"
#include "lockstep/trace/trace_writer.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kBackends[] = {"local", "shm", "tcp", "gloo", "mpi", "nccl", "peer"};

// Order of choice: the options, LOCKSTEP_BACKEND; "": a suitable one (choose_host_backend()).
std::string choose_backend(const InitOptions& options, const EnvLookup& env,
                           const Topology& topology) {
  std::string name =
      options.backend.empty() ? env("LOCKSTEP_BACKEND").value_or("") : options.backend;
  if (name.empty()) return "";
  if (name == "hierarchical:tcp") name = "hierarchical";
  check_backend_name(name);
  if (name == "local" && topology.size > 1) {
    throw InvalidArgument("backend local joins threads of one process; for " +
                          std::to_string(topology.size) + " processes use shm or tcp");
  }
  if ((name == "shm" || name == "peer") && topology.local_size != topology.size) {
    throw InvalidArgument("backend " + name + " joins the ranks of one host, but only " +
                          std::to_string(topology.local_size) + " of " +
                          std::to_string(topology.size) + " are on this one; use " +
                          (name == "peer" ? "nccl" : "hierarchical"));
  }
  return name;
}

// The requested device comes before LOCKSTEP_DEVICE; nullopt if neither is set.
std::optional<at::Device> chosen_device(const InitOptions& options, const EnvLookup& env,
                                        int local_rank) {
  const std::string variable = env("LOCKSTEP_DEVICE").value_or("");
  const std::string& request = options.device.empty() ? variable : options.device;
  if (request.empty()) return std::nullopt;
  const std::string source = options.device.empty() ? "LOCKSTEP_DEVICE" : "InitOptions::device";
  const at::Device chosen = device::choose_device(request, local_rank, source);
  const std::string backend =
      options.backend.empty() ? env("LOCKSTEP_BACKEND").value_or("") : options.backend;
  if (chosen.is_cpu() && is_of_devices(backend)) {
    throw InvalidArgument(source + " '" + request + "' means the CPU here, but backend " + backend +
                          " carries tensors of CUDA devices; ask for cuda, or for another backend");
  }
  return chosen;
}

// Ranks on devices have to meet in a second engine, and would wait forever for ranks that have
// none.
void check_same_kind(Store& store, const std::string& backend,
                     const std::optional<at::Device>& device) {
  const bool host = device ? device->is_cpu() : !is_of_devices(backend);
  const std::string mine = host ? "the CPU" : "a device";
  const std::string first = store.compare_set("kind", "", mine);
  if (first != mine)
    throw InvalidArgument("this rank trains on " + mine + ", and another one on " + first +
                          "; give all ranks the same InitOptions::device or LOCKSTEP_DEVICE (auto "
                          "is the CPU where no device is visible)");
}

// For jobs that replace dead ranks: how this rank meets the others, the first time and later.
class JobMeeting : public std::enable_shared_from_this<JobMeeting> {
 public:
  JobMeeting(const std::shared_ptr<Store>& store, const Topology& topology, InitOptions options,
             CommunicatorOptions communicator, int life)
      : reformation_(store, topology.rank, topology.size,
                     std::to_string(life) + "." + std::to_string(random_word()),
                     [board = communicator.board, topology](int rank) {
                       // The ranks of this host.
                       const int local = rank - topology.rank + topology.local_rank;
                       return local >= 0 && local < topology.local_size &&
                              board->presence(local) == trace::CallBoard::Presence::kEnded;
                     }),
        topology_(topology),
        options_(std::move(options)),
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
          comm.emplace(connect(store, topology_, options_, std::move(communicator), limit, say));
        },
        deadline);
    return *std::move(comm);
  }

 private:
  Reformation reformation_;
  Topology topology_;
  InitOptions options_;
  CommunicatorOptions communicator_;
};

}  // namespace

void check_backend_name(const std::string& name) {
  if (is_hierarchical(name) || name == "hierarchical:tcp") return;
  if (name.starts_with("hierarchical:")) {
    throw InvalidArgument("backend '" + name +
                          "': between its hosts hierarchical uses tcp, gloo or mpi "
                          "(hierarchical, hierarchical:gloo, hierarchical:mpi)");
  }
  if (std::find(std::begin(kBackends), std::end(kBackends), name) != std::end(kBackends)) return;
  throw InvalidArgument("backend '" + name +
                        "' is not known; there are local, shm, tcp, hierarchical, gloo, mpi, "
                        "nccl and peer");
}

Communicator connect(const std::shared_ptr<Store>& store, const Topology& topology,
                     const InitOptions& options, CommunicatorOptions communicator,
                     Deadline deadline, const Joining::AtStep& say) {
  const auto step = [&say](const std::string& what) {
    if (say) say(what);
  };
  const auto join = [&](const std::shared_ptr<Store>& meeting) {
    std::string name = choose_backend(options, process_env(), topology);
    if (name.empty()) {
      if (meeting && topology.local_size != topology.size) step("exchanging who shares a host");
      name = choose_host_backend(meeting, topology, deadline);
    }
    if (meeting) check_same_kind(*meeting, name, communicator.device);
    Engines engines;
    auto origin = std::make_shared<GroupOrigin>();
    origin->members.resize(static_cast<size_t>(topology.size));
    std::iota(origin->members.begin(), origin->members.end(), 0);
    if (name == "local" ||
        ((name == "gloo" || name == "tcp" || is_hierarchical(name)) && !meeting)) {
      const bool on_host = !communicator.device || communicator.device->is_cpu();
      origin->maker = on_host ? make_local_groups() : make_lone_groups(*communicator.device);
      engines = origin->maker->make("all", topology, origin->members, deadline);
    } else {
      EngineRequest request{.backend = name,
                            .topology = topology,
                            .job = topology,
                            .members = origin->members,
                            .timeout = options.timeout,
                            .device = communicator.device,
                            .say = step};
      step("connecting over " + name);
      engines = make_engines(request, meeting, deadline);
      request.say = nullptr;
      origin->maker = make_process_groups(
          request, store ? std::make_shared<PrefixStore>("groups", store) : nullptr,
          communicator.keep);
    }
    communicator.origin = std::move(origin);
    Communicator comm(std::move(engines.own), topology, std::move(communicator),
                      std::move(engines.host));
    step("waiting until all ranks are connected");
    if (meeting) store_barrier(*meeting, "ready", topology.size, deadline);
    return comm;
  };
  return store ? make_together(store, topology.rank, join) : join(nullptr);
}

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
  CommunicatorOptions communicator{.timeout = options.timeout};
  // A bad device is bad for any local rank, and is reported before the ranks meet.
  communicator.device = chosen_device(options, env, topology.local_rank);
  if (auto board = trace::CallBoard::inherit(env); board && topology.local_rank < board->ranks()) {
    communicator.board = std::make_shared<trace::CallBoard>(std::move(*board));
  } else {
    communicator.board = std::make_shared<trace::CallBoard>(trace::CallBoard::create(1));
    communicator.board_rank = 0;
    // Without an agent the rank writes its own trace.
    if (const auto directory = env("LOCKSTEP_TRACE_DIR")) {
      communicator.on_broken = [board = communicator.board, topology,
                                directory = *directory](const std::string& reason) {
        trace::write_own_trace(directory, *board, topology.local_rank, topology.rank, topology.size,
                               reason);
      };
    }
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
      const std::string life =
          meeting.replaces ? "." + std::to_string(meeting.own_restarts.value_or(0)) : "";
      const int64_t turn = rendezvous.store->add("init/" + std::to_string(topology.rank) + life, 1);
      store = std::make_shared<PrefixStore>("world" + std::to_string(turn), rendezvous.store);
      joining.meet_in(store, topology.rank, topology.size, outlived ? -1 : 0);
      joining.step("meeting the other ranks in the store");
      if (!meeting.topology_known) {
        topology = find_topology(*store, topology.rank, topology.size, deadline);
        communicator.device = chosen_device(options, env, topology.local_rank);
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
      if (choose_backend(options, env, topology) == "peer")
        throw InvalidArgument(
            "backend peer: what a device waits for from a rank that died never comes, so that no "
            "rank can take its place; leave out --on-failure replace, or take another backend");
      joining.step("meeting the other ranks, some of which may have been started anew");
      Communicator comm = std::make_shared<JobMeeting>(
                              std::make_shared<PrefixStore>("generations", store), topology,
                              options, std::move(communicator), meeting.own_restarts.value_or(0))
                              ->meet(deadline, say);
      joining.done();
      return comm;
    }
    Communicator comm = connect(store, topology, options, std::move(communicator), deadline, say);
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
