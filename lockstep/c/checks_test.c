#include "lockstep/c/checks_test.h"

#include <signal.h>
#include <stdlib.h>

#include "lockstep/c/lockstep.h"

static lockstep_array vector_of(void* data, const int64_t* size, int32_t dtype) {
  lockstep_array array = {.data = data, .shape = size, .ndim = 1, .dtype = dtype};
  return array;
}

int check_mistakes(void) {
  lockstep_comm* comm = NULL;
  CHECK_THAT(strncmp(lockstep_version(), "0.", 2) == 0);
  CHECK_THAT(lockstep_abi_version() == LOCKSTEP_C_ABI);
  CHECK_THAT(strcmp(lockstep_status_name(LOCKSTEP_PEER_LOST), "LOCKSTEP_PEER_LOST") == 0);
  CHECK_THAT(strcmp(lockstep_status_name((lockstep_status)99), "unknown status") == 0);

  CHECK_ERROR(lockstep_init(NULL, NULL), LOCKSTEP_INVALID_ARGUMENT, "comm is NULL");
  lockstep_init_options options = LOCKSTEP_INIT_OPTIONS;
  options.backend = "pigeons";
  CHECK_ERROR(lockstep_init(&options, &comm), LOCKSTEP_INVALID_ARGUMENT, "pigeons");
  CHECK_THAT(comm == NULL);
  options.backend = NULL;
  options.timeout_seconds = -1;
  CHECK_ERROR(lockstep_init(&options, &comm), LOCKSTEP_INVALID_ARGUMENT, "timeout_seconds is -1");
  options.timeout_seconds = 30;
  options.struct_size = 3;
  CHECK_ERROR(lockstep_init(&options, &comm), LOCKSTEP_INVALID_ARGUMENT, "struct_size is 3");
  /* A program of a newer header, whose further option is set. */
  struct {
    lockstep_init_options known;
    int64_t newer;
  } longer = {LOCKSTEP_INIT_OPTIONS, 1};
  longer.known.struct_size = sizeof longer;
  CHECK_ERROR(lockstep_init(&longer.known, &comm), LOCKSTEP_INVALID_ARGUMENT, "does not know");
  longer.newer = 0;
  CHECK_OK(lockstep_init(&longer.known, &comm));
  CHECK_THAT(strcmp(lockstep_last_error(), "") == 0);

  double data[6] = {1, 2, 3, 4, 5, 6};
  const int64_t shape[2] = {2, 3};
  const int64_t backwards[2] = {3, -1};
  const int64_t negative[2] = {2, -3};
  const int64_t huge[2] = {INT64_MAX / 2, 64};
  lockstep_array array = {.data = data, .shape = shape, .ndim = 2, .dtype = LOCKSTEP_FLOAT64};
  CHECK_OK(lockstep_all_reduce(comm, &array, LOCKSTEP_SUM));
  CHECK_THAT(data[5] == 6);
  CHECK_ERROR(lockstep_all_reduce(NULL, &array, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "comm is NULL");
  CHECK_ERROR(lockstep_all_reduce(comm, NULL, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "array is NULL");
  CHECK_ERROR(lockstep_all_reduce(comm, &array, 77), LOCKSTEP_INVALID_ARGUMENT, "reduction 77");
  CHECK_ERROR(lockstep_broadcast(comm, &array, 1), LOCKSTEP_INVALID_ARGUMENT, "root");

  lockstep_array wrong = array;
  wrong.strides = backwards;
  CHECK_ERROR(lockstep_all_reduce(comm, &wrong, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "strides[1] is -1");
  wrong = array;
  wrong.shape = negative;
  CHECK_ERROR(lockstep_all_reduce(comm, &wrong, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "shape[1] is -3");
  wrong.shape = huge;
  CHECK_ERROR(lockstep_all_reduce(comm, &wrong, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "beyond all memory");
  wrong.shape = NULL;
  CHECK_ERROR(lockstep_all_reduce(comm, &wrong, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "shape is NULL");
  wrong = array;
  wrong.dtype = 0;
  CHECK_ERROR(lockstep_all_reduce(comm, &wrong, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "no dtype 0");
  wrong = array;
  wrong.ndim = LOCKSTEP_MAX_DIMS + 1;
  CHECK_ERROR(lockstep_all_reduce(comm, &wrong, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "ndim is 17");
  wrong = array;
  wrong.data = NULL;
  CHECK_ERROR(lockstep_all_reduce(comm, &wrong, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "data is NULL");
  wrong.data = (char*)data + 1;
  CHECK_ERROR(lockstep_all_reduce(comm, &wrong, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "not aligned");
  wrong = array;
  wrong.device_type = 9;
  CHECK_ERROR(lockstep_all_reduce(comm, &wrong, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "device type 9");

  /* Nothing of that has broken it. */
  CHECK_OK(lockstep_all_reduce(comm, &array, LOCKSTEP_SUM));
  CHECK_THAT(data[0] == 1);
  CHECK_OK(lockstep_comm_free(comm));
  CHECK_OK(lockstep_comm_free(NULL));
  CHECK_OK(lockstep_work_free(NULL));
  CHECK_OK(lockstep_store_free(NULL));
  CHECK_OK(lockstep_model_free(NULL));
  return 0;
}

int check_collectives(void) {
  lockstep_comm* comm = NULL;
  CHECK_OK(lockstep_init(NULL, &comm));
  int32_t rank = -1, size = -1, local_rank = -1, local_size = -1;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  CHECK_OK(lockstep_comm_size(comm, &size));
  CHECK_OK(lockstep_comm_local_rank(comm, &local_rank));
  CHECK_OK(lockstep_comm_local_size(comm, &local_size));
  CHECK_THAT(rank >= 0 && rank < size && size <= 8 && local_rank == rank && local_size == size);
  CHECK_OK(lockstep_barrier(comm));

  /* Of each type: rank r has r + 1, and the sum is size * (size + 1) / 2. */
  const int64_t three[1] = {3};
  const int64_t zero[1] = {0};
  const int sum = size * (size + 1) / 2;
  float f32[3];
  double f64[3];
  int32_t i32[3];
  int64_t i64[3];
  uint8_t u8[3];
  for (int i = 0; i < 3; ++i) {
    f32[i] = (float)(rank + 1);
    f64[i] = rank + 1;
    i32[i] = rank + 1;
    i64[i] = rank + 1;
    u8[i] = (uint8_t)(rank + 1);
  }
  lockstep_array of_f32 = vector_of(f32, three, LOCKSTEP_FLOAT32);
  lockstep_array of_f64 = vector_of(f64, three, LOCKSTEP_FLOAT64);
  lockstep_array of_i32 = vector_of(i32, three, LOCKSTEP_INT32);
  lockstep_array of_i64 = vector_of(i64, three, LOCKSTEP_INT64);
  lockstep_array of_u8 = vector_of(u8, three, LOCKSTEP_UINT8);
  CHECK_OK(lockstep_all_reduce(comm, &of_f32, LOCKSTEP_SUM));
  CHECK_OK(lockstep_all_reduce(comm, &of_f64, LOCKSTEP_SUM));
  CHECK_OK(lockstep_all_reduce(comm, &of_i32, LOCKSTEP_SUM));
  CHECK_OK(lockstep_all_reduce(comm, &of_i64, LOCKSTEP_SUM));
  CHECK_OK(lockstep_all_reduce(comm, &of_u8, LOCKSTEP_SUM));
  for (int i = 0; i < 3; ++i)
    CHECK_THAT(f32[i] == (float)sum && f64[i] == sum && i32[i] == sum && i64[i] == sum &&
               u8[i] == sum);
  lockstep_array nothing = vector_of(NULL, zero, LOCKSTEP_FLOAT32);
  CHECK_OK(lockstep_all_reduce(comm, &nothing, LOCKSTEP_SUM));
  CHECK_OK(lockstep_all_reduce(comm, &of_f64, LOCKSTEP_AVG));
  CHECK_THAT(f64[2] == sum);
  i32[0] = rank;
  CHECK_OK(lockstep_all_reduce(comm, &of_i32, LOCKSTEP_MAX));
  CHECK_THAT(i32[0] == size - 1);

  const int last = size - 1;
  i64[0] = 10 + rank;
  CHECK_OK(lockstep_broadcast(comm, &of_i64, last));
  CHECK_THAT(i64[0] == 10 + last);
  i64[0] = rank + 1;
  CHECK_OK(lockstep_reduce(comm, &of_i64, last, LOCKSTEP_SUM));
  CHECK_THAT(i64[0] == (rank == last ? sum : rank + 1));

  /* Parts: rank r has {10 r, 10 r + 1}. */
  int32_t own[2] = {10 * rank, 10 * rank + 1}, all[16] = {0}, got[2] = {0, 0}, exchanged[16];
  const int64_t part[1] = {2};
  const int64_t whole[1] = {2 * size};
  lockstep_array of_own = vector_of(own, part, LOCKSTEP_INT32);
  lockstep_array of_all = vector_of(all, whole, LOCKSTEP_INT32);
  lockstep_array of_got = vector_of(got, part, LOCKSTEP_INT32);
  lockstep_array of_exchanged = vector_of(exchanged, whole, LOCKSTEP_INT32);
  CHECK_OK(lockstep_all_gather(comm, &of_all, &of_own));
  for (int r = 0; r < size; ++r) CHECK_THAT(all[2 * r] == 10 * r && all[2 * r + 1] == 10 * r + 1);
  memset(all, 0, sizeof all);
  CHECK_OK(lockstep_gather(comm, rank == last ? &of_all : NULL, &of_own, last));
  for (int r = 0; r < size; ++r) CHECK_THAT(all[2 * r] == (rank == last ? 10 * r : 0));
  for (int i = 0; i < 2 * size; ++i) all[i] = rank == last ? 100 + i : -1;
  CHECK_OK(lockstep_scatter(comm, &of_got, rank == last ? &of_all : NULL, last));
  CHECK_THAT(got[0] == 100 + 2 * rank && got[1] == 101 + 2 * rank);
  for (int i = 0; i < 2 * size; ++i) all[i] = i * (rank + 1);
  CHECK_OK(lockstep_reduce_scatter(comm, &of_got, &of_all, LOCKSTEP_SUM));
  CHECK_THAT(got[0] == 2 * rank * sum && got[1] == (2 * rank + 1) * sum);
  for (int i = 0; i < 2 * size; ++i) all[i] = 100 * rank + i;
  CHECK_OK(lockstep_all_to_all(comm, &of_exchanged, &of_all));
  for (int r = 0; r < size; ++r) CHECK_THAT(exchanged[2 * r] == 100 * r + 2 * rank);

  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

/* A Fortran array a(2, 3) with a row of padding: column-major, leading dimension 3. */
int check_strides(void) {
  lockstep_comm* comm = NULL;
  CHECK_OK(lockstep_init(NULL, &comm));
  int32_t rank = 0, size = 0;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  CHECK_OK(lockstep_comm_size(comm, &size));
  double a[9];
  for (int i = 0; i < 9; ++i) a[i] = i;
  const int64_t shape[2] = {2, 3};
  const int64_t strides[2] = {1, 3};
  lockstep_array array = {
      .data = a, .shape = shape, .strides = strides, .ndim = 2, .dtype = LOCKSTEP_FLOAT64};
  CHECK_OK(lockstep_all_reduce(comm, &array, LOCKSTEP_SUM));
  for (int i = 0; i < 9; ++i) CHECK_THAT(a[i] == (i % 3 == 2 ? i : size * i));
  /* What one rank sends in one order another receives in its own. */
  double b[6];
  for (int i = 0; i < 6; ++i) b[i] = -1;
  lockstep_array rows = {.data = b, .shape = shape, .ndim = 2, .dtype = LOCKSTEP_FLOAT64};
  CHECK_OK(lockstep_broadcast(comm, rank == 0 ? &array : &rows, 0));
  if (rank != 0) {
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 3; ++j) CHECK_THAT(b[3 * i + j] == size * (i + 3 * j));
    }
  }
  /* Memory that overlaps itself can be read, and not be written. */
  const int64_t same[2] = {0, 1};
  array.strides = same;
  CHECK_ERROR(lockstep_all_reduce(comm, &array, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
              "overlap");
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_messages(void) {
  lockstep_comm* comm = NULL;
  CHECK_OK(lockstep_init(NULL, &comm));
  int32_t rank = 0, size = 0;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  CHECK_OK(lockstep_comm_size(comm, &size));
  const int64_t two[1] = {2};
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  int64_t out[2] = {rank, 7}, in[2] = {-1, -1};
  lockstep_array of_out = vector_of(out, two, LOCKSTEP_INT64);
  lockstep_array of_in = vector_of(in, two, LOCKSTEP_INT64);
  lockstep_work *receive = NULL, *send = NULL;
  CHECK_OK(lockstep_irecv(comm, &of_in, previous, 5, &receive));
  CHECK_OK(lockstep_isend(comm, &of_out, next, 5, &send));
  CHECK_OK(lockstep_work_wait(receive));
  CHECK_OK(lockstep_work_wait(send));
  CHECK_THAT(in[0] == previous && in[1] == 7);
  int32_t complete = 0;
  CHECK_OK(lockstep_work_test(receive, &complete));
  CHECK_THAT(complete == 1);
  CHECK_OK(lockstep_work_free(receive));
  CHECK_OK(lockstep_work_free(send));
  if (size > 1) {
    if (rank == 0) CHECK_OK(lockstep_send(comm, &of_out, 1, 0));
    if (rank == 1) {
      CHECK_OK(lockstep_recv(comm, &of_in, 0, 0));
      CHECK_THAT(in[0] == 0);
    }
  }
  lockstep_work *sum = NULL, *copy = NULL;
  int64_t a[2] = {1, 2}, b[2] = {rank, rank};
  lockstep_array of_a = vector_of(a, two, LOCKSTEP_INT64);
  lockstep_array of_b = vector_of(b, two, LOCKSTEP_INT64);
  CHECK_OK(lockstep_all_reduce_start(comm, &of_a, LOCKSTEP_SUM, &sum));
  CHECK_OK(lockstep_broadcast_start(comm, &of_b, size - 1, &copy));
  CHECK_OK(lockstep_work_wait(copy));
  CHECK_OK(lockstep_work_wait(sum));
  CHECK_THAT(a[0] == size && a[1] == 2 * size && b[1] == size - 1);
  CHECK_OK(lockstep_work_free(sum));
  CHECK_OK(lockstep_work_free(copy));
  CHECK_ERROR(lockstep_irecv(comm, &of_in, size, 0, &receive), LOCKSTEP_INVALID_ARGUMENT, "");
  CHECK_THAT(receive == NULL);
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_groups(void) {
  lockstep_comm *comm = NULL, *half = NULL, *copy = NULL;
  CHECK_OK(lockstep_init(NULL, &comm));
  int32_t rank = 0, size = 0, n = 0;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  CHECK_OK(lockstep_comm_size(comm, &size));
  /* Rank 0 is in no group. */
  CHECK_OK(lockstep_comm_split(comm, rank == 0 ? -1 : 0, -rank, &half));
  CHECK_THAT((half == NULL) == (rank == 0));
  if (half != NULL) {
    CHECK_OK(lockstep_comm_size(half, &n));
    CHECK_THAT(n == size - 1);
    CHECK_OK(lockstep_comm_rank(half, &n));
    CHECK_THAT(n == size - 1 - rank);
    CHECK_OK(lockstep_barrier(half));
  }
  CHECK_OK(lockstep_comm_duplicate(comm, &copy));
  CHECK_OK(lockstep_comm_free(comm));
  CHECK_OK(lockstep_barrier(copy));
  CHECK_OK(lockstep_comm_free(half));
  CHECK_OK(lockstep_comm_free(copy));
  return 0;
}

int check_store(void) {
  lockstep_comm* comm = NULL;
  lockstep_store* store = NULL;
  CHECK_OK(lockstep_init(NULL, &comm));
  int32_t rank = 0, size = 0;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  CHECK_OK(lockstep_comm_size(comm, &size));
  CHECK_OK(lockstep_store_open(30, &store));
  if (rank == size - 1) CHECK_OK(lockstep_store_set(store, "greeting", "he\0lo", 5));
  char value[8] = "";
  size_t bytes = 0;
  CHECK_OK(lockstep_store_wait(store, "greeting", 30));
  CHECK_OK(lockstep_store_get(store, "greeting", 30, value, sizeof value, &bytes));
  CHECK_THAT(bytes == 5 && memcmp(value, "he\0lo", 5) == 0);
  bytes = 0;
  CHECK_ERROR(lockstep_store_get(store, "greeting", 30, value, 2, &bytes),
              LOCKSTEP_INVALID_ARGUMENT, "has 5 bytes");
  CHECK_THAT(bytes == 5);
  int64_t sum = 0;
  CHECK_OK(lockstep_store_add(store, "count", 2, &sum));
  CHECK_THAT(sum >= 2 && sum <= 2 * size && sum % 2 == 0);
  CHECK_OK(lockstep_barrier(comm));
  CHECK_OK(lockstep_store_add(store, "count", 0, &sum));
  CHECK_THAT(sum == 2 * size);
  CHECK_ERROR(lockstep_store_wait(store, "never", 0.05), LOCKSTEP_TIMEOUT, "never");
  CHECK_ERROR(lockstep_store_add(store, "greeting", 1, &sum), LOCKSTEP_STORE_ERROR, "");
  CHECK_OK(lockstep_barrier(comm));
  CHECK_OK(lockstep_store_free(store));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_arrays(void) {
  lockstep_comm* comm = NULL;
  CHECK_OK(lockstep_init(NULL, &comm));
  int32_t rank = 0, size = 0;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  CHECK_OK(lockstep_comm_size(comm, &size));
  double w[6];
  float b[4], padding = -5;
  for (int i = 0; i < 6; ++i) w[i] = i * (rank + 1);
  for (int i = 0; i < 4; ++i) b[i] = (float)(rank + i);
  const int64_t w_shape[2] = {2, 3};
  const int64_t b_shape[1] = {2};
  const int64_t b_strides[1] = {2};
  const lockstep_array arrays[2] = {
      {.data = w, .shape = w_shape, .ndim = 2, .dtype = LOCKSTEP_FLOAT64},
      {.data = b, .shape = b_shape, .strides = b_strides, .ndim = 1, .dtype = LOCKSTEP_FLOAT32}};
  const char* const names[2] = {"w", "b"};
  padding = b[1];
  CHECK_OK(lockstep_average_arrays(comm, arrays, 2));
  for (int i = 0; i < 6; ++i) CHECK_THAT(2 * w[i] == i * (size + 1));
  CHECK_THAT(2 * b[0] == (float)(size - 1) && 2 * b[2] == (float)(size + 3) && b[1] == padding);
  w[1] = rank;
  b[0] = (float)rank;
  CHECK_OK(lockstep_broadcast_arrays(comm, arrays, 2, names, size - 1));
  CHECK_THAT(w[1] == size - 1 && b[0] == (float)(size - 1) && b[1] == padding);
  CHECK_OK(lockstep_broadcast_arrays(comm, arrays, 2, NULL, 0));
  CHECK_OK(lockstep_average_arrays(comm, NULL, 0));
  if (size > 1) {
    const int64_t other_shape[2] = {3, 2};
    lockstep_array other[2] = {arrays[0], arrays[1]};
    if (rank == 1) other[0].shape = other_shape;
    CHECK_ERROR(lockstep_broadcast_arrays(comm, other, 2, names, 0), LOCKSTEP_MISMATCH, "w");
  }
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_mismatch(void) {
  lockstep_comm* comm = NULL;
  CHECK_OK(lockstep_init(NULL, &comm));
  int32_t rank = 0;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  const int64_t one[1] = {1};
  double x = 1;
  lockstep_array array = vector_of(&x, one, LOCKSTEP_FLOAT64);
  CHECK_ERROR(lockstep_all_reduce(comm, &array, rank == 0 ? LOCKSTEP_SUM : LOCKSTEP_MAX),
              LOCKSTEP_MISMATCH, "checks_test.c:");
  /* It is broken, and says so at once. */
  CHECK_ERROR(lockstep_barrier(comm), LOCKSTEP_MISMATCH, "all_reduce");
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_abort(void) {
  lockstep_comm* comm = NULL;
  CHECK_OK(lockstep_init(NULL, &comm));
  int32_t rank = 0;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  if (rank == 0)
    CHECK_OK(lockstep_comm_abort(comm, "the solver has diverged"));
  else
    CHECK_ERROR(lockstep_barrier(comm), LOCKSTEP_PEER_LOST, "the solver has diverged");
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_lost_peer(void) {
  lockstep_comm* comm = NULL;
  CHECK_OK(lockstep_init(NULL, &comm));
  int32_t rank = 0, size = 0;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  CHECK_OK(lockstep_comm_size(comm, &size));
  CHECK_OK(lockstep_barrier(comm));
  if (rank == size - 1) raise(SIGKILL);
  CHECK_ERROR(lockstep_barrier(comm), LOCKSTEP_PEER_LOST, "barrier");
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}

int check_null_handles(void) {
  lockstep_comm* comm = NULL;
  lockstep_init_options options = LOCKSTEP_INIT_OPTIONS;
  options.timeout_seconds = 2;
  CHECK_OK(lockstep_init(&options, &comm));
  int32_t rank = 0, size = 0;
  CHECK_OK(lockstep_comm_rank(comm, &rank));
  CHECK_OK(lockstep_comm_size(comm, &size));
  const int64_t one[1] = {1};
  double x = 1;
  lockstep_array array = vector_of(&x, one, LOCKSTEP_FLOAT64);
  const int last = rank == size - 1;
  /* A refused call has not been made: the right one follows, and all are in step. */
  if (last) {
    CHECK_ERROR(lockstep_all_reduce(NULL, &array, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
                "comm is NULL");
    CHECK_ERROR(lockstep_all_reduce(comm, NULL, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
                "array is NULL");
    CHECK_ERROR(lockstep_comm_split(comm, 0, 0, NULL), LOCKSTEP_INVALID_ARGUMENT, "group is NULL");
    CHECK_ERROR(lockstep_broadcast_arrays(comm, NULL, 1, NULL, 0), LOCKSTEP_INVALID_ARGUMENT,
                "arrays is NULL");
  }
  CHECK_OK(lockstep_all_reduce(comm, &array, LOCKSTEP_SUM));
  CHECK_THAT(x == size);
  /* If none follows, the others' time-out names the rank. */
  char words[64];
  snprintf(words, sizeof words, "rank %d", (int)size - 1);
  lockstep_store* store = NULL;
  CHECK_OK(lockstep_store_open(60, &store));
  if (last) {
    CHECK_ERROR(lockstep_all_reduce(NULL, &array, LOCKSTEP_SUM), LOCKSTEP_INVALID_ARGUMENT,
                "comm is NULL");
    CHECK_OK(lockstep_store_wait(store, "timed out", 60)); /* it lives, and calls nothing */
  } else {
    CHECK_ERROR(lockstep_all_reduce(comm, &array, LOCKSTEP_SUM), LOCKSTEP_TIMEOUT, words);
    CHECK_OK(lockstep_store_set(store, "timed out", NULL, 0));
  }
  CHECK_OK(lockstep_store_free(store));
  CHECK_OK(lockstep_comm_free(comm));
  return 0;
}
