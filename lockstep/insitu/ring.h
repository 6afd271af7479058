// In situ: a simulation hands samples to trainers on the same host while both go on.
//
// A ring is memory of a fixed number of slots, each of which holds one sample. Producers write a
// sample in place and commit it; consumers take the oldest ones, each of which goes to one
// consumer. A ring has a name, by which unrelated processes of one user on one host find it; no
// launcher is needed, and neither libtorch nor MPI.
//
//   // the simulation                                   // the trainer
//   auto ring = insitu::Producer::open("flow",          auto ring = insitu::Consumer::open("flow");
//       insitu::Schema({{"u", kFloat32, {3, 64}}}));    while (true) {
//   for (...) {                                           auto batch = ring.take(32, Deadline::seconds(10));
//     step(u);                                            if (batch.empty() && ring.ended()) break;
//     if (auto slot = ring.begin(Deadline::seconds(1))) { train(batch);
//       slot->write(0, u.data());                       }
//       slot->commit();
//     }
//   }
//   ring.close(Deadline::seconds(60));
//
// The life of a ring. The first producer makes it with its schema and number of slots; a consumer
// that comes earlier waits for it. Later producers must bring the same schema. The ring lives as
// long as any member does: a simulation or a trainer may end, and be started and attach again. It
// has no file: when the last member ends, however it ends, nothing is left.
//
// Access. All members have one user: the kernel tells each side the other's, and processes of other
// users are turned away. Processes of one user trust each other with the samples. Still, a member
// that writes nonsense into the ring cannot make another one read or write outside of its memory;
// it can only spoil samples and counts. Nothing listens beyond the host, and members in different
// network namespaces (containers) do not find each other.
//
// Deaths. The death of a member delays no other. A slot that a killed producer was filling is free
// again; a sample that a killed consumer had taken goes to another consumer. So a sample may be
// seen twice if its consumer was killed after using it and before releasing it. A stopped member
// (SIGSTOP) keeps the slots that it is working on, and only those. The others notice a death at
// their next wait, within 50 ms, or within 50 ms of calls on a full or empty ring. A member that
// forks lives until its children that have not called exec() have ended too.
//
// The cost. A hand-over is one copy of the sample, and a system call only when the other side
// sleeps. Each member has one thread, which sleeps until another process asks for the ring.
//
// Thread-safety: a Producer and a Consumer may be used by several threads. A Slot or a Batch
// belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"
#include "lockstep/insitu/schema.h"
#include "lockstep/insitu/stats.h"

namespace lockstep::inline v0::insitu {

class RingMember;  // private

// The behaviour of begin() if the ring is full.
enum class OnFull : uint32_t {
  kWait = 0,        // waits for a slot until the deadline, then drops the new sample
  kDropNewest = 1,  // drops the new sample at once
  kDropOldest = 2,  // overwrites the oldest sample that no consumer has taken; if consumers and
                    // producers hold all slots, drops the new sample at once
};

// The options of Producer::open().
struct LOCKSTEP_API ProducerOptions {
  // The number of slots, 1 to 4096, if this producer makes the ring; otherwise the ring's holds.
  int slots = 64;
  OnFull on_full = OnFull::kWait;  // of this producer
  // The number of producers that the simulation starts, if this one makes the ring: the stream does
  // not end before so many have closed or died.
  int producers = 1;
};

// A slot that a producer fills. Movable. A slot that is destroyed without commit() is given back,
// and no consumer sees what was written. It may outlive its Producer.
class LOCKSTEP_API Slot {
 public:
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&& other) noexcept;
  ~Slot();

  // The field's array in the ring, aligned to 64 bytes, of schema()[field].bytes(). It has any
  // contents at first. Valid until commit(). Throws: InvalidArgument for a field that is not there.
  void* data(size_t field);
  // Copies the whole field from `array`, contiguous. Large arrays bypass the caches.
  // Throws: InvalidArgument for a field that is not there.
  void write(size_t field, const void* array);
  // Hands the sample over; the slot must not be used any more. Throws: InvalidArgument if the slot
  // was committed or moved from.
  void commit();

 private:
  friend class Producer;
  Slot(std::shared_ptr<RingMember> member, uint32_t index);
  void give_back() noexcept;
  std::shared_ptr<RingMember> member_;
  uint32_t index_ = 0;
};

// One producer of a ring. Movable; a moved-from one may only be destroyed. A Producer that is
// destroyed without close() counts as lost.
class LOCKSTEP_API Producer {
 public:
  // Makes the ring, or joins it. Waits only for members that are just making it, or do not answer.
  // Throws: InvalidArgument: a bad name or option, a name of another user, more than 256 members;
  // Mismatch, which names the field and both forms, for a ring of another schema; Timeout if no
  // member of an existing ring answers; DataError for a ring of another version; SystemError.
  static Producer open(const std::string& name, const Schema& schema,
                       const ProducerOptions& options = {},
                       Deadline deadline = Deadline::seconds(10));
  Producer(Producer&&) noexcept;
  Producer& operator=(Producer&&) noexcept;
  ~Producer();

  // The schema of the ring's samples.
  const Schema& schema() const;
  // A slot for the next sample; nullopt if the sample is dropped (OnFull), which is counted. Waits
  // at most until the deadline, and only with OnFull::kWait.
  // Throws: InvalidArgument after close().
  std::optional<Slot> begin(Deadline deadline);
  // begin(), write() of every field, commit(): `arrays` has one array a field, in order. Returns
  // false if the sample is dropped.
  // Throws: InvalidArgument after close(), and for a wrong number of arrays.
  bool push(const std::vector<const void*>& arrays, Deadline deadline);
  // The producer has finished. Waits until consumers have taken all samples of the ring, at most
  // until the deadline; returns whether they have. If this is the ring's last member, what they
  // have not taken is lost when it is destroyed. A second call only waits.
  bool close(Deadline drain = Deadline::seconds(0));
  // The counts of the whole ring.
  RingStats stats() const;

 private:
  explicit Producer(std::shared_ptr<RingMember> member, OnFull on_full);
  std::shared_ptr<RingMember> member_;
  OnFull on_full_ = OnFull::kWait;
};

// Samples that a consumer holds. Movable. They are released, so that their slots are free again,
// by release(), by clear() or when the batch is destroyed. It may outlive its Consumer.
class LOCKSTEP_API Batch {
 public:
  Batch() = default;
  Batch(Batch&& other) noexcept;
  Batch& operator=(Batch&& other) noexcept;
  ~Batch();

  // The number of samples.
  size_t size() const { return samples_.size(); }
  // Whether it holds none.
  bool empty() const { return samples_.empty(); }
  // The schema of its samples; an empty batch that no take() has returned has an empty one.
  const Schema& schema() const;
  // The field's array of a sample, in the ring; valid until the sample is released.
  // Throws: InvalidArgument for a sample or a field that is not there.
  const void* data(size_t sample, size_t field) const;
  // Unique in the ring. Those of one producer rise in its order, and come in that order to one
  // consumer, apart from samples that come again after another consumer's death; those of several
  // producers come nearly in the order of commit().
  uint64_t number(size_t sample) const;
  // The producer's row in stats().members, if no member's place was taken by another one.
  uint32_t producer(size_t sample) const;
  // Releases all samples. The batch is empty then.
  void clear() noexcept;
  // Gives all samples back to the ring, at their place in the order, for another take().
  void put_back() noexcept;
  // Moves one sample into a batch of its own; the indices of later ones fall by one.
  // Throws: InvalidArgument for a sample that is not there.
  Batch split(size_t sample);

 private:
  friend class Consumer;
  struct Sample {
    uint32_t slot = 0;
    uint32_t producer = 0;
    uint64_t number = 0;
  };
  const Sample& at(size_t sample) const;
  std::shared_ptr<RingMember> member_;
  std::vector<Sample> samples_;
};

// One consumer of a ring. Movable; a moved-from one may only be destroyed.
class LOCKSTEP_API Consumer {
 public:
  // Joins the ring; waits until a producer has made it. `schema`: what this consumer expects; an
  // empty one takes what there is.
  // Throws: as Producer::open(); Timeout if there is no such ring by the deadline.
  static Consumer open(const std::string& name, Deadline deadline = Deadline::seconds(60),
                       const Schema& schema = {});
  Consumer(Consumer&&) noexcept;
  Consumer& operator=(Consumer&&) noexcept;
  ~Consumer();

  // The schema of the ring's samples.
  const Schema& schema() const;
  // The ring's number of slots.
  int slots() const;
  // Takes the oldest samples, until there are `count`, the deadline has passed, or the stream has
  // ended; returns those it has, perhaps none. The batch holds their slots meanwhile: with several
  // consumers, `count` of all together should be below slots().
  // Throws: InvalidArgument if count is 0 or above slots().
  Batch take(size_t count, Deadline deadline);
  // Whether the stream has ended: the announced producers have closed or died, none lives, and no
  // sample waits. A producer that attaches later begins it anew; those who were announced count
  // over the ring's life, so that then one producer is enough for an end.
  bool ended() const;
  // The counts of the whole ring.
  RingStats stats() const;

 private:
  explicit Consumer(std::shared_ptr<RingMember> member);
  std::shared_ptr<RingMember> member_;
};

}  // namespace lockstep::inline v0::insitu
