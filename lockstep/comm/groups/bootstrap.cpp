#include "lockstep/comm/groups/bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "lockstep/comm/engines/mpi/mpi_meeting.h"
#include "lockstep/comm/groups/torch_store.h"
#include "lockstep/core/errors.h"
#include "lockstep/store/file_store.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::inline v0 {
namespace {

using launch::JobEnvironment;
using launch::Launcher;

Topology topology_of(const JobEnvironment& job) {
  return {job.rank, job.world_size, job.local_rank, job.local_world_size, job.node_rank};
}

std::string master_advice(Launcher launcher) {
  return "started by " + std::string(to_string(launcher)) +
         ": set MASTER_ADDR and MASTER_PORT to where rank 0 shall listen, and "
         "LOCKSTEP_SECRET_FILE to a file that all ranks can read";
}

Meeting from_launcher(const EnvLookup& env) {
  const JobEnvironment job = launch::read_job_environment(env);
  Meeting meeting;
  meeting.topology = topology_of(job);
  switch (job.launcher) {
    case Launcher::kNone:
      break;
    case Launcher::kLockstep:
      meeting.kind = Meeting::Kind::kAgent;
      meeting.address = *job.store;
      meeting.own_restarts = job.own_restarts;
      meeting.replaces = job.replaces;
      meeting.life =
          std::to_string(job.generation) + "." + std::to_string(job.own_restarts.value_or(0));
      break;
    case Launcher::kTorchrun:
      meeting.kind = job.world_size == 1 ? Meeting::Kind::kAlone : Meeting::Kind::kTorch;
      if (job.master) meeting.address = *job.master;
      meeting.torch_agent_store = env("TORCHELASTIC_USE_AGENT_STORE") == "True";
      meeting.key_prefix = "lockstep/" + env("TORCHELASTIC_RUN_ID").value_or("none") + "/" +
                           std::to_string(job.restart_count);
      // Launched by hand with RANK and WORLD_SIZE alone: it is unknown which ranks share a host.
      meeting.topology_known = env("LOCAL_RANK").has_value() && env("LOCAL_WORLD_SIZE").has_value();
      break;
    case Launcher::kOpenMpi:
    case Launcher::kMpich:
    case Launcher::kSlurm: {
      if (job.world_size == 1) break;
      const bool by_mpirun = job.launcher != Launcher::kSlurm;
      const auto directory = env("PMIX_SERVER_TMPDIR");
      const bool on_one_host = job.local_world_size == job.world_size;
      if (job.launcher == Launcher::kOpenMpi && on_one_host && directory) {
        // Uses mpirun's session directory, which belongs to this user and this job alone and is
        // removed with it.
        meeting.kind = Meeting::Kind::kFile;
        meeting.path = *directory + "/lockstep-" + env("PMIX_NAMESPACE").value_or("job");
        meeting.own_file = true;
      } else if (job.master) {
        meeting.kind = Meeting::Kind::kRankZero;
        meeting.address = *job.master;
      } else if (by_mpirun) {
        meeting.kind = Meeting::Kind::kMpi;
      } else {
        throw InvalidArgument(master_advice(job.launcher));
      }
      // mpirun may distribute the ranks over the hosts one by one, without saying so.
      meeting.topology_known = !by_mpirun || on_one_host;
      break;
    }
  }
  return meeting;
}

Secret need_secret(const InitOptions& options, const EnvLookup& env, const std::string& method) {
  if (!options.secret.empty()) return Secret::from_text(options.secret);
  if (auto secret = Secret::from_env(env)) return *secret;
  throw InvalidArgument(
      method +
      " needs a secret that all ranks share: set LOCKSTEP_SECRET or LOCKSTEP_SECRET_FILE, or give "
      "init({.secret = ...}); without one every process that reaches the port could join");
}

std::string read_line(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// Makes rank 0's own store, for ranks that learn its address and secret from `publish`.
Rendezvous own_store(bool rank_zero, const HostPort& address, const Secret& secret,
                     Deadline deadline) {
  Rendezvous result;
  if (!rank_zero) {
    result.store = std::make_shared<TcpStore>(address, secret, deadline);
    return result;
  }
  auto server = std::make_shared<TcpStoreServer>(address, secret);
  result.store = std::make_shared<TcpStore>(server->address(), secret, deadline);
  result.keep = server;
  return result;
}

}  // namespace

std::shared_ptr<Store> reach_store(const std::vector<HostPort>& addresses, const Secret& secret,
                                   Deadline deadline) {
  std::string last;
  // An address of another network may never answer, so no address gets all the time.
  Deadline::Duration patience = std::chrono::milliseconds(500);
  do {
    std::optional<SystemError> hopeless;  // the error if no address can be reached later either
    bool later = false;
    for (const HostPort& address : addresses) {
      try {
        return std::make_shared<TcpStore>(
            address, secret, Deadline::after(std::min(patience, deadline.remaining())));
      } catch (const SystemError& error) {
        last = error.what();
        hopeless = error;
        later = later || may_connect_later(address, error.errnum());
      } catch (const Error& error) {
        last = error.what();
        later = true;
      }
    }
    if (hopeless && !later) throw *hopeless;
    patience = std::min<Deadline::Duration>(2 * patience, std::chrono::seconds(8));
  } while (!deadline.expired());
  throw Timeout("rank 0 is not reached at any of its addresses, the last try: " + last +
                "; LOCKSTEP_INTERFACE on its host chooses an interface");
}

// The message is "secret address address", or "!" and why rank 0 cannot serve a store.
Rendezvous meet_through_mpi(const mpi::World& world, bool one_host, const EnvLookup& env,
                            Deadline deadline) {
  Rendezvous result;
  std::string word;
  std::exception_ptr failed;
  if (world.rank() == 0) {
    try {
      const Offer offer =
          make_offer(interface_addresses(), env("LOCKSTEP_INTERFACE").value_or(""), one_host);
      const Secret secret = Secret::generate();
      result = own_store(true, {offer.listen, 0}, secret, deadline);
      const uint16_t port = std::static_pointer_cast<TcpStoreServer>(result.keep)->address().port;
      word = secret.text();
      for (const std::string& address : offer.addresses) {
        const std::string next = " " + HostPort{address, port}.to_string();
        if (word.size() + next.size() <= mpi::kMaxWord) word += next;
      }
    } catch (const std::exception& error) {
      failed = std::current_exception();
      word = ("!" + std::string(error.what())).substr(0, mpi::kMaxWord);
    }
  }
  word = mpi::word_of_rank_zero(world, word, deadline);
  if (failed) std::rethrow_exception(failed);
  if (world.rank() == 0) return result;
  if (word.starts_with('!')) throw StoreError("rank 0 cannot serve a store: " + word.substr(1));
  std::istringstream words(word);
  std::string secret, address;
  std::vector<HostPort> addresses;
  words >> secret;
  while (words >> address) addresses.push_back(parse_host_port(address));
  if (addresses.empty()) throw StoreError("rank 0 named no store through MPI");
  result.store = reach_store(addresses, Secret::from_text(secret), deadline);
  return result;
}

std::shared_ptr<Store> kept_store(Rendezvous rendezvous) {
  const auto both = std::make_shared<Rendezvous>(std::move(rendezvous));
  return {both, both->store.get()};
}

std::string host_identity() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return read_line("/proc/sys/kernel/random/boot_id") + "/" + name;
}

Offer make_offer(const std::vector<InterfaceAddress>& all, const std::string& wanted,
                 bool one_host) {
  if (one_host && wanted.empty()) return {"127.0.0.1", {"127.0.0.1"}};
  std::vector<std::string> addresses = candidate_addresses(all, wanted);
  if (addresses.empty())
    throw InvalidArgument("rank 0's host has no address that other hosts could reach");
  if (!wanted.empty()) return {addresses.front(), {addresses.front()}};
  // All addresses are of one family, so that one socket serves them all.
  const auto is_v6 = [](const std::string& address) {
    return address.find(':') != std::string::npos;
  };
  const bool v6 = std::all_of(addresses.begin(), addresses.end(), is_v6);
  std::erase_if(addresses, [&](const std::string& address) { return is_v6(address) != v6; });
  return {v6 ? "::" : "0.0.0.0", addresses};
}

Meeting decide_meeting(const InitOptions& options, const EnvLookup& env) {
  const std::string& method = options.init_method;
  if (method == "env://") {
    Meeting meeting = from_launcher(env);
    if (options.rank && *options.rank != meeting.topology.rank) {
      throw InvalidArgument("init(): rank " + std::to_string(*options.rank) +
                            " contradicts the environment's " +
                            std::to_string(meeting.topology.rank) + "; leave it out with env://");
    }
    if (options.world_size && *options.world_size != meeting.topology.size) {
      throw InvalidArgument("init(): world_size " + std::to_string(*options.world_size) +
                            " contradicts the environment's " +
                            std::to_string(meeting.topology.size) +
                            "; start that many ranks, e.g. lockstep run --nproc-per-node " +
                            std::to_string(*options.world_size));
    }
    return meeting;
  }
  const bool tcp = method.starts_with("tcp://");
  const bool file = method.starts_with("file://");
  if (!tcp && !file) {
    throw InvalidArgument("init_method '" + method +
                          "' is not known; use env://, tcp://host:port or file:///path");
  }
  if (!options.rank || !options.world_size)
    throw InvalidArgument("init_method " + method + " needs .rank and .world_size");
  if (*options.world_size < 1 || *options.rank < 0 || *options.rank >= *options.world_size) {
    throw InvalidArgument("init(): rank " + std::to_string(*options.rank) + " of world_size " +
                          std::to_string(*options.world_size) +
                          " is out of range: ranks count from 0 to world_size - 1");
  }
  Meeting meeting;
  meeting.topology.rank = *options.rank;
  meeting.topology.size = *options.world_size;
  meeting.topology_known = false;
  if (tcp) {
    meeting.kind = Meeting::Kind::kRankZero;
    meeting.address = parse_host_port(method.substr(6));
    if (meeting.address.port == 0)
      throw InvalidArgument("init_method " + method +
                            ": port 0 cannot be found by the other ranks");
  } else {
    meeting.kind = Meeting::Kind::kFile;
    meeting.path = method.substr(7);
    if (meeting.path.empty())
      throw InvalidArgument("init_method file:// needs a path: file:///path/to/new/file");
  }
  return meeting;
}

Rendezvous open_store(const Meeting& meeting, const InitOptions& options, const EnvLookup& env,
                      Deadline deadline) {
  const bool rank_zero = meeting.topology.rank == 0;
  switch (meeting.kind) {
    case Meeting::Kind::kAlone:
      return {};
    case Meeting::Kind::kAgent:
      return {std::make_shared<TcpStore>(meeting.address,
                                         need_secret(options, env, "LOCKSTEP_STORE"), deadline),
              nullptr};
    case Meeting::Kind::kRankZero:
      return own_store(
          rank_zero, meeting.address,
          need_secret(options, env, "rank 0's store at " + meeting.address.to_string()), deadline);
    case Meeting::Kind::kMpi: {
      const Topology& place = meeting.topology;
      try {
        const auto world = mpi::world_of_job(place.rank, place.size, deadline);
        return meet_through_mpi(*world, place.local_size == place.size, env, deadline);
      } catch (const LaunchError& error) {
        throw InvalidArgument(master_advice(Launcher::kOpenMpi) +
                              " (or make MPI loadable: " + error.what() + ")");
      }
    }
    case Meeting::Kind::kFile: {
      auto file = std::make_shared<FileStore>(meeting.path);
      if (rank_zero && !meeting.own_file && file->add("lockstep/jobs", 1) > 1) {
        throw InvalidArgument("file://" + meeting.path +
                              " was used by another job; every job needs a new file: remove it");
      }
      return {file, nullptr};
    }
    case Meeting::Kind::kTorch: {
      // The TCPStore has no authentication, so the secret is as private as that store. For one host
      // the store is expected on the loopback.
      const HostPort listen{meeting.topology.local_size == meeting.topology.size
                                ? "127.0.0.1"
                                : resolve(meeting.address.host),
                            0};
      TorchStore torch_store(meeting.address, rank_zero && !meeting.torch_agent_store, deadline);
      Rendezvous result;
      if (rank_zero) {
        const Secret secret = Secret::generate();
        result = own_store(true, listen, secret, deadline);
        const auto server = std::static_pointer_cast<TcpStoreServer>(result.keep);
        torch_store.set(meeting.key_prefix + "/store",
                        server->address().to_string() + " " + secret.text());
      } else {
        const std::string text = torch_store.get(meeting.key_prefix + "/store", deadline);
        const auto space = text.find(' ');
        if (space == std::string::npos)
          throw StoreError("rank 0 published no store in torchrun's TCPStore");
        result = own_store(false, parse_host_port(text.substr(0, space)),
                           Secret::from_text(text.substr(space + 1)), deadline);
      }
      // Rank 0 may serve the TCPStore, so no rank continues before all have read it.
      store_barrier(*result.store, "torch-store", meeting.topology.size, deadline);
      return result;
    }
  }
  return {};
}

Topology topology_of_hosts(int rank, const std::vector<std::string>& hosts) {
  const std::string& mine = hosts[static_cast<size_t>(rank)];
  Topology topology{rank, static_cast<int>(hosts.size()), 0, 0, 0};
  std::vector<std::string> nodes;
  for (int r = 0; r < topology.size; ++r) {
    const std::string& host = hosts[static_cast<size_t>(r)];
    if (std::find(nodes.begin(), nodes.end(), host) == nodes.end()) nodes.push_back(host);
    if (host != mine) continue;
    if (r < rank) ++topology.local_rank;
    ++topology.local_size;
  }
  topology.node_rank =
      static_cast<int>(std::find(nodes.begin(), nodes.end(), mine) - nodes.begin());
  return topology;
}

Topology find_topology(Store& store, int rank, int size, Deadline deadline) {
  store.set("host/" + std::to_string(rank), host_identity());
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) {
    try {
      hosts.push_back(store.get("host/" + std::to_string(r), deadline));
    } catch (const Timeout&) {
      throw Timeout(
          "rank " + std::to_string(r) + " of " + std::to_string(size) + " did not arrive within " +
          std::to_string(static_cast<int>(deadline.timeout_seconds())) + " s; was it started?");
    }
  }
  return topology_of_hosts(rank, hosts);
}

void refuse_to_join_again(Store& store, const Meeting& meeting) {
  if (!meeting.own_restarts || meeting.replaces) return;
  const std::string rank = std::to_string(meeting.topology.rank);
  const std::string life = std::to_string(*meeting.own_restarts);
  const std::string first = store.compare_set("init-life/" + rank, "", life);
  if (first == life) return;
  throw InvalidArgument("init(): rank " + rank + " was started again (restart " + life +
                        ") after it had called init(), and cannot join the other ranks a second "
                        "time; let roles with restarts meet through job_store() instead");
}

void leave_store(Store& store, int rank, int size, Deadline deadline) {
  const auto key = [](int r) { return "left/" + std::to_string(r); };
  if (rank == 0) {
    for (int r = 1; r < size; ++r) store.get(key(r), deadline);
    return;
  }
  try {
    store.set(key(rank), "1");
  } catch (const StoreError&) {
    // Rank 0 accepted the request and ended before it answered.
  }
}

}  // namespace lockstep::inline v0
