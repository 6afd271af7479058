/* A C program's use of a ring, compiled as strictly as C can be; c_functions_test.cpp calls it. */
#include <stdio.h>
#include <string.h>

#include "lockstep/insitu/lockstep_insitu.h"

/* What it expected, or "". */
const char* lockstep_insitu_c_checks(const char* name);

#define EXPECT(condition)                            \
  do {                                               \
    if (!(condition)) return "expected " #condition; \
  } while (0)

const char* lockstep_insitu_c_checks(const char* name) {
  char error[256] = "";
  const lockstep_insitu_field fields[] = {{"u", LOCKSTEP_INSITU_FLOAT64, 2, {2, 3}},
                                          {"step", LOCKSTEP_INSITU_INT32, 0, {0}}};
  const lockstep_insitu_field others[] = {{"u", LOCKSTEP_INSITU_FLOAT64, 2, {2, 4}},
                                          {"step", LOCKSTEP_INSITU_INT32, 0, {0}}};
  lockstep_insitu_options options = LOCKSTEP_INSITU_OPTIONS;
  lockstep_insitu_producer* producer = NULL;
  lockstep_insitu_producer* other = NULL;
  lockstep_insitu_consumer* consumer = NULL;
  lockstep_insitu_stats stats;
  lockstep_insitu_field field;
  double u[2][3] = {{1, 2, 3}, {4, 5, 6}};
  int32_t step = 7, placed = -1, taken = -1, ended = -1, drained = -1;
  const void* arrays[] = {u, &step};
  void* places[] = {NULL, NULL};

  options.slots = 2;
  options.on_full = LOCKSTEP_INSITU_DROP_NEWEST;
  EXPECT(lockstep_insitu_consume(name, 0.01, &consumer, error, sizeof error) ==
         LOCKSTEP_INSITU_TIMEOUT);
  EXPECT(strstr(error, "no producer") != NULL);
  EXPECT(lockstep_insitu_produce(name, fields, 2, &options, 10, &producer, error, sizeof error) ==
         LOCKSTEP_INSITU_OK);
  EXPECT(lockstep_insitu_produce(name, others, 2, NULL, 10, &other, error, sizeof error) ==
         LOCKSTEP_INSITU_MISMATCH);
  EXPECT(other == NULL);
  EXPECT(strstr(error, "u float64 [2, 4]") != NULL);
  EXPECT(lockstep_insitu_consume(name, 10, &consumer, NULL, 0) == LOCKSTEP_INSITU_OK);
  EXPECT(lockstep_insitu_consumer_fields(consumer) == 2);
  EXPECT(lockstep_insitu_consumer_field(consumer, 0, &field, NULL, 0) == LOCKSTEP_INSITU_OK);
  EXPECT(strcmp(field.name, "u") == 0 && field.dtype == LOCKSTEP_INSITU_FLOAT64);
  EXPECT(field.ndim == 2 && field.shape[0] == 2 && field.shape[1] == 3);
  EXPECT(lockstep_insitu_consumer_field(consumer, 2, &field, error, 9) ==
         LOCKSTEP_INSITU_INVALID_ARGUMENT);
  EXPECT(strcmp(error, "insitu: ") == 0);

  EXPECT(lockstep_insitu_push(producer, arrays, 1, 1, &placed, error, sizeof error) ==
         LOCKSTEP_INSITU_INVALID_ARGUMENT);
  EXPECT(lockstep_insitu_push(producer, arrays, 2, 1, &placed, error, sizeof error) == 0);
  EXPECT(placed == 1);
  EXPECT(lockstep_insitu_begin(producer, places, 2, 1, &placed, error, sizeof error) == 0);
  EXPECT(placed == 1);
  EXPECT(lockstep_insitu_begin(producer, places, 2, 1, &placed, error, sizeof error) ==
         LOCKSTEP_INSITU_INVALID_ARGUMENT);
  u[1][2] = 60;
  step = 8;
  memcpy(places[0], u, sizeof u);
  memcpy(places[1], &step, sizeof step);
  EXPECT(lockstep_insitu_commit(producer, error, sizeof error) == 0);
  EXPECT(lockstep_insitu_commit(producer, error, sizeof error) == LOCKSTEP_INSITU_INVALID_ARGUMENT);
  EXPECT(lockstep_insitu_push(producer, arrays, 2, 1, &placed, error, sizeof error) == 0);
  EXPECT(placed == 0);

  EXPECT(lockstep_insitu_take(consumer, 2, 10, &taken, &ended, error, sizeof error) == 0);
  EXPECT(taken == 2 && ended == 0);
  EXPECT(*(const int32_t*)lockstep_insitu_data(consumer, 0, 1) == 7);
  EXPECT(((const double*)lockstep_insitu_data(consumer, 1, 0))[5] == 60);
  EXPECT(lockstep_insitu_data(consumer, 2, 0) == NULL);
  EXPECT(lockstep_insitu_data(consumer, 0, 2) == NULL);
  lockstep_insitu_release(consumer);
  EXPECT(lockstep_insitu_data(consumer, 0, 0) == NULL);

  EXPECT(lockstep_insitu_close(producer, 10, &drained, error, sizeof error) == 0);
  EXPECT(drained == 1);
  EXPECT(lockstep_insitu_take(consumer, 1, 10, &taken, &ended, error, sizeof error) == 0);
  EXPECT(taken == 0 && ended == 1);
  EXPECT(lockstep_insitu_take(consumer, 0, 10, &taken, &ended, error, sizeof error) ==
         LOCKSTEP_INSITU_INVALID_ARGUMENT);
  EXPECT(lockstep_insitu_consumer_stats(consumer, &stats, error, sizeof error) == 0);
  EXPECT(stats.produced == 2 && stats.consumed == 2 && stats.dropped == 1 && stats.slots == 2);
  lockstep_insitu_consumer_free(consumer);
  lockstep_insitu_producer_free(producer);
  lockstep_insitu_producer_free(NULL);
  EXPECT(lockstep_insitu_push(NULL, arrays, 2, 1, &placed, error, sizeof error) ==
         LOCKSTEP_INSITU_INVALID_ARGUMENT);
  return "";
}
