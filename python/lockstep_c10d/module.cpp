// The Python module: makes process groups for torch.distributed.
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>

#include "backend.h"
#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/comm/groups/connection.h"
#include "lockstep/core/env.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/trace/call_board.h"
#include "site.h"
#include "store_view.h"

namespace lockstep::inline v0::python {
namespace {

// Where the job's own group shows its calls: on the agent's board under lockstep run, else on one
// of its own, which the flight recorder reads.
void show_calls(CommunicatorOptions& options, const Topology& topology) {
  auto board = trace::CallBoard::inherit(process_env());
  if (!board || topology.local_rank >= board->ranks()) {
    board = trace::CallBoard::create(1);
    options.board_rank = 0;
  }
  options.board = std::make_shared<trace::CallBoard>(std::move(*board));
}

// Collective over the group's ranks. `world`: the group is the job's own.
c10::intrusive_ptr<c10d::Backend> connect_group(const c10::intrusive_ptr<c10d::Store>& torch_store,
                                                int rank, int size,
                                                std::chrono::duration<float> timeout, bool world) {
  const Deadline deadline = Deadline::seconds(timeout.count());
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline.timeout());
  Topology topology{rank, size, 0, 1, 0};
  const Connection connection{.backend = "", .timeout = deadline.timeout()};
  std::shared_ptr<Store> store;
  if (size > 1) {
    store = std::make_shared<PrefixStore>("lockstep", std::make_shared<StoreView>(torch_store));
    topology = find_topology(*store, rank, size, deadline);
  }
  CommunicatorOptions communicator{.timeout = deadline.timeout()};
  if (world) show_calls(communicator, topology);
  Communicator comm = connect(store, topology, connection, std::move(communicator), deadline);
  return c10::make_intrusive<LockstepBackend>(std::move(comm), milliseconds);
}

}  // namespace
}  // namespace lockstep::inline v0::python

PYBIND11_MODULE(_C, m) {
  m.doc() = "Lockstep's communicator as a backend of torch.distributed";
  m.def("set_foreign_folders", &lockstep::python::set_foreign_folders, pybind11::arg("folders"));
  m.def("connect_group", &lockstep::python::connect_group, pybind11::arg("store"),
        pybind11::arg("rank"), pybind11::arg("size"), pybind11::arg("timeout"),
        pybind11::arg("world"), pybind11::call_guard<pybind11::gil_scoped_release>());
}
