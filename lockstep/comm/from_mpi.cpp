#include "lockstep/comm/from_mpi.h"

#include "lockstep/comm/engines/mpi/mpi_meeting.h"
#include "lockstep/comm/engines/mpi/mpi_world.h"
#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/comm/groups/connection.h"
#include "lockstep/comm/groups/joining.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/device/current.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep::inline v0 {

Communicator from_mpi_fint(int comm, const FromMpiOptions& options, const void* mpi_function) {
  if (!options.backend.empty()) check_backend_name(options.backend);
  const EnvLookup env = process_env();
  const Deadline deadline = Deadline::after(options.timeout);
  const auto world = mpi::world_of(comm, mpi_function, deadline);
  const Topology topology =
      topology_of_hosts(world->rank(), mpi::words_of_all(*world, host_identity(), deadline));

  const Connection connection{
      .backend = options.backend, .timeout = options.timeout, .world = world};
  CommunicatorOptions communicator{.timeout = options.timeout};
  communicator.device = chosen_device(options.device, options.backend, env, topology.local_rank);
  keep_own_trace(communicator, topology, env);
  if (communicator.device) device::set_current(*communicator.device);
  if (topology.size == 1) {
    return connect(nullptr, topology, connection, std::move(communicator), deadline);
  }

  Joining joining(communicator.board, communicator.board_rank, nullptr);
  try {
    joining.step("reaching rank 0's store");
    // The store is there for groups that are made later.
    const std::shared_ptr<Store> job =
        kept_store(meet_through_mpi(*world, topology.local_size == topology.size, env, deadline));
    const auto store = std::make_shared<PrefixStore>("world", job);
    joining.meet_in(store, topology.rank, topology.size, 0);
    const auto say = [&joining](const std::string& what) { joining.step(what); };
    communicator.keep = job;
    Communicator result =
        connect(store, topology, connection, std::move(communicator), deadline, say);
    // Rank 0 may end at once, and its store with it.
    joining.step("leaving the store");
    leave_store(*store, topology.rank, topology.size, deadline);
    joining.done();
    return result;
  } catch (...) {
    joining.fail();
  }
}

}  // namespace lockstep::inline v0
