// The Python module: makes process groups for torch.distributed.
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <pybind11/chrono.h>

#include <chrono>
#include <memory>
#include <string>

#include "backend.h"
#include "lockstep/comm/bootstrap.h"
#include "lockstep/core/secret.h"
#include "lockstep/store/prefix_store.h"
#include "store_view.h"

namespace lockstep::python {
namespace {

// The group's secret: rank 0 makes it and leaves it in the group's store, so it is as private as
// that store.
Secret agree_on_secret(Store& store, int rank, Deadline deadline) {
  if (rank != 0) return Secret::from_text(store.get("secret", deadline));
  const Secret secret = Secret::generate();
  store.set("secret", secret.text());
  return secret;
}

// Collective over the group's ranks.
c10::intrusive_ptr<c10d::Backend> connect_group(const c10::intrusive_ptr<c10d::Store>& torch_store,
                                                int rank, int size,
                                                std::chrono::duration<float> timeout) {
  const Deadline deadline = Deadline::seconds(timeout.count());
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline.timeout());
  Topology topology{rank, size, 0, 1, 0};
  InitOptions options{.timeout = deadline.timeout()};
  std::shared_ptr<Store> store;
  if (size > 1) {
    store = std::make_shared<PrefixStore>("lockstep", std::make_shared<StoreView>(torch_store));
    topology = find_topology(*store, rank, size, deadline);
    options.secret = agree_on_secret(*store, rank, deadline).text();
  }
  Communicator comm = connect(store, topology, options, {.timeout = deadline.timeout()}, deadline);
  return c10::make_intrusive<LockstepBackend>(std::move(comm), milliseconds);
}

}  // namespace
}  // namespace lockstep::python

PYBIND11_MODULE(_C, m) {
  m.doc() = "Lockstep's communicator as a backend of torch.distributed";
  m.def("connect_group", &lockstep::python::connect_group, pybind11::arg("store"),
        pybind11::arg("rank"), pybind11::arg("size"), pybind11::arg("timeout"),
        pybind11::call_guard<pybind11::gil_scoped_release>());
}
