// The definitions of the opaque handles of the communicator's half.
#pragma once

#include <memory>
#include <utility>

#include "lockstep/c/communicator.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/work.h"
#include "lockstep/store/store.h"

struct lockstep_comm {
  lockstep::Communicator comm;
};

struct lockstep_work {
  lockstep::Communicator comm;  // its group, which must outlive the operation
  lockstep::Work work;
};

struct lockstep_store {
  std::shared_ptr<lockstep::Store> store;
};
