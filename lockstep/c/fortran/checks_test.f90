! What the tests of the Fortran module run. Every rank runs the same; the sums are exact.
!
!   checks_test FOLDER           all checks
!   checks_test error            a mistake without ierr, which must end the program
program checks_test
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env
  use lockstep
  implicit none
  type(lockstep_comm) :: comm
  integer :: rank, n, sum
  character(4096) :: argument

  call get_command_argument(1, argument)
  call lockstep_init(comm)
  call lockstep_comm_rank(comm, rank)
  call lockstep_comm_size(comm, n)
  sum = n*(n + 1)/2
  if (argument == "error") then
    call lockstep_broadcast(comm, rank, 77)
    stop
  end if
  call check_collectives()
  call check_sections()
  call check_errors()
  call check_messages()
  call check_groups()
  call check_lists()
  call check_store()
  call check_model(trim(argument))
  call lockstep_comm_free(comm)
  if (rank == 0) print "(a)", "all is well"

contains

  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(*), intent(in) :: what
    if (condition) return
    write (error_unit, "(a,i0,4a)") "rank ", rank, ": not so: ", what, "; last error: ", &
      lockstep_error()
    error stop 3
  end subroutine

  subroutine check_collectives()
    real(real32) :: s
    real(real64) :: a(2, 3), whole(2, 3*n)
    real(real64), allocatable :: b(:)
    integer(int32) :: i(2, 2, 2)
    integer(int64) :: k, l(2, n), m(2, n)
    logical(c_bool) :: any_rank
    integer :: r
    s = real(rank + 1, real32)
    call lockstep_all_reduce(comm, s, LOCKSTEP_SUM)
    call check(s == sum, "all_reduce of a real32")
    a = rank + 1
    call lockstep_all_reduce(comm, a, LOCKSTEP_SUM)
    call check(all(a == sum), "all_reduce of a matrix")
    i = rank
    call lockstep_all_reduce(comm, i, LOCKSTEP_MAX)
    call check(all(i == n - 1), "all_reduce of an int32")
    k = rank + 1
    call lockstep_reduce(comm, k, n - 1, LOCKSTEP_SUM)
    call check(k == merge(sum, rank + 1, rank == n - 1), "reduce of an int64")
    any_rank = rank == 0
    call lockstep_all_reduce(comm, any_rank, LOCKSTEP_MAX)
    call check(logical(any_rank), "all_reduce of a logical")
    allocate (b(5))
    b = rank
    call lockstep_broadcast(comm, b, n - 1)
    call check(all(b == n - 1), "broadcast")
    ! Parts are taken along the last dimension.
    a = rank
    call lockstep_all_gather(comm, whole, a)
    do r = 0, n - 1
      call check(all(whole(:, 3*r + 1:3*r + 3) == r), "all_gather")
    end do
    whole = -1
    call lockstep_gather(comm, whole, a, 0)
    call check(all(whole(:, 3*n) == merge(n - 1, -1, rank == 0)), "gather")
    do r = 0, n - 1
      l(:, r + 1) = 10*r + [1, 2]
    end do
    block
      integer(int64) :: mine(2, 1)
      call lockstep_scatter(comm, mine, l, 0)
      call check(all(mine(:, 1) == 10*rank + [1, 2]), "scatter")
      l = l*(rank + 1)
      call lockstep_reduce_scatter(comm, mine, l, LOCKSTEP_SUM)
      call check(all(mine(:, 1) == (10*rank + [1, 2])*sum), "reduce_scatter")
    end block
    do r = 0, n - 1
      l(:, r + 1) = 100*rank + r
    end do
    call lockstep_all_to_all(comm, m, l)
    do r = 0, n - 1
      call check(all(m(:, r + 1) == 100*r + rank), "all_to_all")
    end do
    call lockstep_barrier(comm)
  end subroutine

  ! A section is reduced where it is; what is between its elements stays.
  subroutine check_sections()
    real(real64) :: a(4, 6), before(4, 6)
    integer :: i, ierr
    a = reshape([(real(i, real64), i=1, 24)], [4, 6])
    before = a
    call lockstep_all_reduce(comm, a(2:3, 1:5:2), LOCKSTEP_SUM)
    call check(all(a(2:3, 1:5:2) == n*before(2:3, 1:5:2)), "all_reduce of a section")
    call check(all(a(1, :) == before(1, :)) .and. all(a(:, 2:6:2) == before(:, 2:6:2)), &
      "what is between stays")
    call lockstep_all_reduce(comm, a(:, 6:1:-1), LOCKSTEP_SUM, ierr)
    call check(ierr == LOCKSTEP_INVALID_ARGUMENT, "a section that runs backwards is refused")
    call check(index(lockstep_error(), "strides[0] is -4") > 0, "... with a line")
  end subroutine

  subroutine check_errors()
    complex(real64) :: z(2)
    type(lockstep_comm) :: nothing
    integer :: ierr
    call lockstep_broadcast(comm, rank, 77, ierr)
    call check(ierr == LOCKSTEP_INVALID_ARGUMENT, "a root that is none")
    call check(index(lockstep_error(), "root") > 0, "... with a line")
    call check(lockstep_status_name(ierr) == "LOCKSTEP_INVALID_ARGUMENT", "the status's name")
    z = 0
    call lockstep_all_reduce(comm, z, LOCKSTEP_SUM, ierr)
    call check(ierr == LOCKSTEP_INVALID_ARGUMENT, "complex numbers are refused")
    call lockstep_barrier(nothing, ierr)
    call check(ierr == LOCKSTEP_INVALID_ARGUMENT, "a communicator that is none")
    call lockstep_barrier(comm, ierr)
    call check(ierr == LOCKSTEP_OK .and. lockstep_error() == "", "nothing is broken")
  end subroutine

  subroutine check_messages()
    type(lockstep_work) :: receive, send, work
    integer(int64), asynchronous :: in(3), out(3), total
    integer :: complete
    out = rank
    in = -1
    call lockstep_irecv(comm, in, modulo(rank - 1, n), 4, receive)
    call lockstep_isend(comm, out, modulo(rank + 1, n), 4, send)
    call lockstep_work_wait(receive)
    call lockstep_work_wait(send)
    call check(all(in == modulo(rank - 1, n)), "a message")
    call lockstep_work_test(receive, complete)
    call check(complete == 1, "work_test")
    total = rank + 1
    call lockstep_all_reduce_start(comm, total, LOCKSTEP_SUM, work)
    call lockstep_work_wait(work)
    call check(total == sum, "all_reduce_start")
    call lockstep_work_free(receive)
    call lockstep_work_free(send)
    call lockstep_work_free(work)
    if (n > 1 .and. rank == 0) call lockstep_send(comm, out, 1, 0)
    if (rank == 1) call lockstep_recv(comm, in, 0, 0)
    call check(rank /= 1 .or. all(in == 0), "send and recv")
  end subroutine

  subroutine check_groups()
    type(lockstep_comm) :: group, copy
    integer :: size
    call lockstep_comm_split(comm, merge(-1, 0, rank == 0), 0, group)
    call check(lockstep_is_member(group) .neqv. rank == 0, "split")
    if (lockstep_is_member(group)) then
      call lockstep_comm_size(group, size)
      call check(size == n - 1, "the group's size")
      call lockstep_comm_free(group)
    end if
    call lockstep_comm_duplicate(comm, copy)
    call lockstep_barrier(copy)
    call lockstep_comm_free(copy)
  end subroutine

  subroutine check_lists()
    type(lockstep_list) :: list
    real(real64), target :: w(3, 2), b(4)
    real(real32), target :: f(5)
    integer :: ierr
    w = 2*rank
    b = 2*rank
    f = 2*rank
    call lockstep_list_add(list, w, "w")
    call lockstep_list_add(list, b(1:3:2), "b")
    call lockstep_list_add(list, f, "f")
    call lockstep_average_arrays(comm, list)
    call check(all(w == n - 1) .and. all(b(1:3:2) == n - 1) .and. all(f == n - 1), "averages")
    call check(b(2) == 2*rank, "what is between stays")
    w = rank
    call lockstep_broadcast_arrays(comm, list, n - 1)
    call check(all(w == n - 1), "broadcast_arrays")
    call lockstep_list_free(list)
    if (n == 1) return
    call lockstep_list_add(list, f(1:4 + rank), "f")
    call lockstep_broadcast_arrays(comm, list, 0, ierr)
    call check(ierr == LOCKSTEP_MISMATCH, "ranks with other shapes")
    call check(index(lockstep_error(), "f") > 0, "... with a text")
    call lockstep_list_free(list)
  end subroutine

  subroutine check_store()
    type(lockstep_store) :: store
    character(20) :: value, padded_key
    character(2) :: short
    integer(int64) :: count
    integer :: ierr
    call lockstep_store_open(30d0, store)
    if (rank == n - 1) call lockstep_store_set(store, "greeting", "hello")
    call lockstep_store_wait(store, "greeting", 30d0)
    call lockstep_store_get(store, "greeting", 30d0, value)
    call check(value == "hello", "the store's value")
    padded_key = "greeting"
    value = ""
    call lockstep_store_get(store, padded_key, 30d0, value)
    call check(value == "hello", "a key in a longer variable")
    if (rank == 0) call lockstep_store_set(store, "blanks", "ab  ")
    call lockstep_store_get(store, "blanks", 30d0, short, ierr)
    call check(ierr == LOCKSTEP_INVALID_ARGUMENT, "a value keeps its trailing blanks")
    call check(index(lockstep_error(), "has 4 bytes") > 0, "... all of them")
    call lockstep_store_add(store, "count", 1_int64, count)
    call check(count >= 1 .and. count <= n, "the store's sum")
    call lockstep_barrier(comm)
    call lockstep_store_free(store)
  end subroutine

  ! On all ranks, and on this one alone with all the samples: the same losses and results.
  subroutine check_model(folder)
    character(*), intent(in) :: folder
    type(lockstep_model) :: together, single, loaded
    type(lockstep_comm) :: alone
    character(12) :: activation  ! longer than its text
    real(real64) :: x(2, 8), y(1, 8), expected(1, 8), result(1, 8), loss, other, first
    integer :: step, i, from, to, count
    integer(int64) :: steps
    activation = "tanh"
    call lockstep_comm_split(comm, rank, 0, alone)
    call lockstep_model_mlp([2, 6, 1], together, activation=activation, seed=rank + 1)
    call lockstep_model_mlp([2, 6, 1], single, seed=1)
    call lockstep_model_start_training(together, comm, loss="mse", learning_rate=0.05d0)
    call lockstep_model_start_training(single, alone, loss="mse", learning_rate=0.05d0)
    ! Rank r has the samples from + 1 to to; in some steps rank 0 has none.
    do step = 1, 60
      do i = 1, 8
        x(:, i) = [sin(0.7d0*i + step), cos(1.3d0*i*step)]
        y(1, i) = x(1, i) - x(2, i)/2
      end do
      from = 8*rank/n
      to = 8*(rank + 1)/n
      if (n > 1 .and. modulo(step, 3) == 0) then
        from = merge(0, 8, rank == 1)
        to = 8
      end if
      call lockstep_model_train_step(together, x(:, from + 1:to), y(:, from + 1:to), loss)
      call lockstep_model_train_step(single, x, y, other)
      call check(abs(loss - other) < 1d-10, "the losses are those of one process")
      if (step == 1) first = loss
    end do
    call check(loss < first/2, "the loss falls")
    call lockstep_model_forward(together, x, result)
    call lockstep_model_forward(single, x, expected)
    call check(maxval(abs(result - expected)) < 1d-10, "the results are those of one process")
    call lockstep_model_evaluate(together, x, y, loss)
    call check(abs(loss - sum_of_squares(result - y)/8) < 1d-12, "evaluate")
    call lockstep_model_steps(together, steps)
    call lockstep_model_parameter_count(together, count)
    call check(steps == 60 .and. count == 4, "steps and parameters")

    call lockstep_model_save(together, folder//"/checkpoint")
    call lockstep_model_save_script(together, folder//"/net.pt")
    call lockstep_model_load(folder//"/net.pt", loaded)
    call lockstep_model_forward(loaded, x, expected)
    call check(all(result == expected), "the script")
    call lockstep_model_mlp([2, 6, 1], single, single=.false., activation="tanh", device="cpu")
    call lockstep_model_start_training(single, comm, loss="mse")
    call lockstep_model_restore(single, folder//"/checkpoint")
    call lockstep_model_forward(single, x, expected)
    call check(all(result == expected), "the checkpoint")
    call lockstep_model_free(together)
    call lockstep_model_free(single)
    call lockstep_model_free(loaded)
    call lockstep_comm_free(alone)
  end subroutine

  real(real64) function sum_of_squares(a)
    real(real64), intent(in) :: a(:, :)
    integer :: i, j
    sum_of_squares = 0
    do j = 1, size(a, 2)
      do i = 1, size(a, 1)
        sum_of_squares = sum_of_squares + a(i, j)**2
      end do
    end do
  end function

end program checks_test
