// A contender of `lockstep bench collectives`: one way of doing collectives, with its buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "lockstep/bench/figures.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::inline v0::bench {

// All ranks make the same calls in the same order: prepare() for a case, then touch() and run() as
// often as wished.
class Contender {
 public:
  Contender(std::string name, bool symmetric, int rank, int size);
  virtual ~Contender() = default;
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  const std::string& name() const { return name_; }
  bool symmetric() const { return symmetric_; }
  // The library that it was loaded from at run time; "" if it is Lockstep's or libtorch's.
  const std::string& library() const { return library_; }
  // The reason why it cannot do the case, the same on all ranks; "" if it can.
  virtual std::string obstacle(const BenchCase& c) const = 0;

  // Makes the buffers of a case; release() frees them.
  void prepare(const BenchCase& c);
  virtual void release();
  // Rewrites this rank's input with values that depend on the rank and `turn`.
  void touch(int64_t turn);
  // Runs one operation and waits for its end.
  virtual void run() = 0;
  // Throws: Error unless the last run() left the right values for `turn` in the result.
  virtual void verify(int64_t turn) const;

 protected:
  virtual at::Tensor make_buffer(int64_t elements, at::ScalarType dtype);
  double value_of(int rank, int64_t turn) const;
  bool gives_input() const;

  std::string name_;
  std::string library_;
  bool symmetric_;
  int rank_;
  int size_;
  BenchCase case_;
  at::Tensor input_;   // this rank's input; the same tensor as output_ where it works in place
  at::Tensor output_;  // undefined where this rank receives nothing

 private:
  at::Tensor patterns_;  // the values that value_of() gives, as elements
};

// Measures the collectives of a Communicator, and keeps a copy of the handle. `library` is as
// Contender::library().
std::unique_ptr<Contender> make_comm_contender(const Communicator& comm, bool symmetric,
                                               const std::string& library = "");

// Measures plain copies between the ranks of one host: each rank reads and writes as many bytes as
// its part of an operation must, without waiting for others. An operation can only be faster where
// it stores past the caches.
// Requires: a communicator with shared memory.
std::unique_ptr<Contender> make_copy_contender(const Communicator& comm);

// Measures MPI's blocking functions on plain memory.
// Requires: a communicator of backend mpi in this process.
std::unique_ptr<Contender> make_raw_mpi_contender(int rank, int size);

}  // namespace lockstep::inline v0::bench
