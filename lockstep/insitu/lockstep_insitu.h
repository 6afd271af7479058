// In situ for C (C11; also C++): a simulation hands samples to trainers on the same host through a
// ring in shared memory, while both go on. lockstep/insitu/ring.h says how a ring behaves: life,
// access, deaths. A program links lockstep::insitu, and needs neither libtorch nor MPI.
//
//   lockstep_insitu_field fields[] = {{"u", LOCKSTEP_INSITU_FLOAT64, 2, {64, 64}}};
//   lockstep_insitu_producer* ring;
//   if (lockstep_insitu_produce("flow", fields, 1, NULL, 10.0, &ring, error, sizeof error) != 0) ...
//   const void* arrays[] = {u};
//   int placed;
//   lockstep_insitu_push(ring, arrays, 1, 0.5, &placed, error, sizeof error);
//
// Every function that can fail returns 0 or one of LOCKSTEP_INSITU_INVALID_ARGUMENT and so on, and
// then writes one line about it, cut to `error_size` bytes with its NUL, to `error`, which may be
// NULL. Its other out-parameters are unchanged then. No C++ exception leaves a function. Timeouts
// are in seconds; INFINITY is none.
//
// Thread-safety: one thread at a time for each handle.
#ifndef LOCKSTEP_INSITU_H
#define LOCKSTEP_INSITU_H

#include <stddef.h>
#include <stdint.h>

// Marks what the library exports.
#define LOCKSTEP_INSITU_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// The results of the functions; the numbers are those of lockstep_status.
enum {
  LOCKSTEP_INSITU_OK = 0,
  LOCKSTEP_INSITU_INVALID_ARGUMENT = 1,
  LOCKSTEP_INSITU_TIMEOUT = 2,   // no ring, or no member of it answers
  LOCKSTEP_INSITU_MISMATCH = 4,  // the ring has another schema; the text names the field
  LOCKSTEP_INSITU_DATA_ERROR = 6,
  LOCKSTEP_INSITU_SYSTEM_ERROR = 9,
  LOCKSTEP_INSITU_OUT_OF_MEMORY = 10,
  LOCKSTEP_INSITU_INTERNAL_ERROR = 13
};

// Types of elements; the numbers of LOCKSTEP_FLOAT32 and so on.
enum {
  LOCKSTEP_INSITU_FLOAT32 = 1,
  LOCKSTEP_INSITU_FLOAT64 = 2,
  LOCKSTEP_INSITU_FLOAT16 = 3,
  LOCKSTEP_INSITU_BFLOAT16 = 4,
  LOCKSTEP_INSITU_INT8 = 5,
  LOCKSTEP_INSITU_INT16 = 6,
  LOCKSTEP_INSITU_INT32 = 7,
  LOCKSTEP_INSITU_INT64 = 8,
  LOCKSTEP_INSITU_UINT8 = 9,
  LOCKSTEP_INSITU_BOOL = 10
};

// If the ring is full (OnFull in ring.h).
enum { LOCKSTEP_INSITU_WAIT = 0, LOCKSTEP_INSITU_DROP_NEWEST = 1, LOCKSTEP_INSITU_DROP_OLDEST = 2 };

// The most dims of a field, and fields of a sample.
#define LOCKSTEP_INSITU_MAX_DIMS 8
#define LOCKSTEP_INSITU_MAX_FIELDS 64

// One array of a sample, contiguous, the last dim varies fastest: the Fortran array a(nx, ny) has
// the shape {ny, nx}.
typedef struct lockstep_insitu_field {
  const char* name;  // the caller's; of lockstep_insitu_consumer_field(), the consumer's
  int32_t dtype;
  int32_t ndim;  // 0: one number
  int64_t shape[LOCKSTEP_INSITU_MAX_DIMS];
} lockstep_insitu_field;

typedef struct lockstep_insitu_options lockstep_insitu_options;  // of lockstep_insitu_produce()
// The producer's options: ProducerOptions in ring.h. Start from LOCKSTEP_INSITU_OPTIONS.
struct lockstep_insitu_options {
  size_t size;  // of this struct, so that fields can be added; the macro below sets it
  int32_t slots;
  int32_t on_full;
  int32_t producers;
};
// The defaults.
#define LOCKSTEP_INSITU_OPTIONS {sizeof(lockstep_insitu_options), 64, LOCKSTEP_INSITU_WAIT, 1}

typedef struct lockstep_insitu_stats lockstep_insitu_stats;  // what has passed through a ring
// Counts since the ring was made: RingStats in stats.h.
struct lockstep_insitu_stats {
  uint64_t produced, dropped, consumed, abandoned, redelivered;
  int32_t slots, full, writing, reading;
  double waited_seconds;  // of all producers in the table
};

typedef struct lockstep_insitu_producer lockstep_insitu_producer;  // one producer of a ring
typedef struct lockstep_insitu_consumer lockstep_insitu_consumer;  // one consumer of a ring

// Makes or joins a ring. `options` may be NULL. The handle is freed by
// lockstep_insitu_producer_free().
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_produce(const char* name,
                                                   const lockstep_insitu_field* fields,
                                                   int32_t count,
                                                   const lockstep_insitu_options* options,
                                                   double timeout, lockstep_insitu_producer** out,
                                                   char* error, size_t error_size);

// Copies one array a field, in order, into the ring. *placed (may be NULL) becomes 0 if the sample
// was dropped, otherwise 1.
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_push(lockstep_insitu_producer* ring,
                                                const void* const* arrays, int32_t count,
                                                double timeout, int32_t* placed, char* error,
                                                size_t error_size);

// The same in place: sets arrays[i], of `count` fields, to where the caller writes field i, until
// lockstep_insitu_commit() or lockstep_insitu_abandon(). *placed becomes 0 if the sample is
// dropped; then there is nothing to commit. One sample at a time.
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_begin(lockstep_insitu_producer* ring, void** arrays,
                                                 int32_t count, double timeout, int32_t* placed,
                                                 char* error, size_t error_size);
// Hands over the sample that was begun.
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_commit(lockstep_insitu_producer* ring, char* error,
                                                  size_t error_size);
// Gives the begun sample's slot back; does nothing if none was begun.
LOCKSTEP_INSITU_EXPORT void lockstep_insitu_abandon(lockstep_insitu_producer* ring);

// The producer has finished; waits until all samples are taken. *drained (may be NULL) becomes
// whether they were.
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_close(lockstep_insitu_producer* ring, double timeout,
                                                 int32_t* drained, char* error, size_t error_size);
// Fills *out.
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_producer_stats(const lockstep_insitu_producer* ring,
                                                          lockstep_insitu_stats* out, char* error,
                                                          size_t error_size);
// Frees the handle, and what it holds; NULL is allowed.
LOCKSTEP_INSITU_EXPORT void lockstep_insitu_producer_free(lockstep_insitu_producer* ring);

// Joins a ring, and waits until there is one.
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_consume(const char* name, double timeout,
                                                   lockstep_insitu_consumer** out, char* error,
                                                   size_t error_size);
// The number of fields of a sample.
LOCKSTEP_INSITU_EXPORT int32_t
lockstep_insitu_consumer_fields(const lockstep_insitu_consumer* ring);
// Fills *out. The name is valid until the consumer is freed.
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_consumer_field(const lockstep_insitu_consumer* ring,
                                                          int32_t field, lockstep_insitu_field* out,
                                                          char* error, size_t error_size);
// Releases the samples of the last take, then takes up to `count`. *taken becomes their number, and
// *ended (may be NULL) 1 once the stream has ended.
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_take(lockstep_insitu_consumer* ring, int32_t count,
                                                double timeout, int32_t* taken, int32_t* ended,
                                                char* error, size_t error_size);
// A field of a taken sample; valid until the next take, release or free. NULL for a sample or field
// that is not there.
LOCKSTEP_INSITU_EXPORT const void* lockstep_insitu_data(const lockstep_insitu_consumer* ring,
                                                        int32_t sample, int32_t field);
// Releases the taken samples.
LOCKSTEP_INSITU_EXPORT void lockstep_insitu_release(lockstep_insitu_consumer* ring);
// Fills *out.
LOCKSTEP_INSITU_EXPORT int lockstep_insitu_consumer_stats(const lockstep_insitu_consumer* ring,
                                                          lockstep_insitu_stats* out, char* error,
                                                          size_t error_size);
// Frees the handle, and what it holds; NULL is allowed.
LOCKSTEP_INSITU_EXPORT void lockstep_insitu_consumer_free(lockstep_insitu_consumer* ring);

#ifdef __cplusplus
}
#endif

#endif  // LOCKSTEP_INSITU_H
