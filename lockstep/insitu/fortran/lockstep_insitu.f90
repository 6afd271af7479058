! In situ for Fortran: a simulation hands samples to trainers on the same host through a ring in shared memory
! (lockstep/insitu/lockstep_insitu.h and ring.h say more). Link lockstep::insitu_fortran.
!
!   type(insitu_producer) :: ring
!   real(real64), target :: u(nx, ny)
!   call insitu_produce(ring, 'flow', [insitu_field('u', INSITU_FLOAT64, [nx, ny])], 10.0d0, stat, message)
!   call insitu_push(ring, [c_loc(u)], 0.5d0, placed, stat, message)
!   call insitu_close(ring, 60.0d0, drained, stat, message)
!   call insitu_free(ring)
!
! The shape of a field is in Fortran's order; a trainer in C++ or Python sees it reversed, since there the last dim varies
! fastest. `stat` becomes 0, or the number of an error of which `message` has the text. Timeouts are in seconds.
! Thread-safety: one thread at a time for each ring.
module lockstep_insitu
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: real64, int32, int64
  implicit none
  private

  ! Element types.
  integer(c_int32_t), parameter, public :: INSITU_FLOAT32 = 1, INSITU_FLOAT64 = 2, INSITU_INT8 = 5, INSITU_INT16 = 6, &
                                           INSITU_INT32 = 7, INSITU_INT64 = 8, INSITU_UINT8 = 9
  ! If the ring is full.
  integer(c_int32_t), parameter, public :: INSITU_WAIT = 0, INSITU_DROP_NEWEST = 1, INSITU_DROP_OLDEST = 2

  integer, parameter :: max_dims = 8, max_name = 63

  ! Of c_loc(), which the caller needs.
  public :: c_loc, c_ptr

  type, public :: insitu_field
    character(len=max_name) :: name = ''
    integer(c_int32_t) :: dtype = 0
    integer :: dims = 0
    integer(c_int64_t) :: shape(max_dims) = 0
  end type
  interface insitu_field
    module procedure field_of_array, field_of_number
  end interface

  type, public :: insitu_producer
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  public :: insitu_produce, insitu_push, insitu_close, insitu_free

  type, bind(c) :: c_field
    type(c_ptr) :: name
    integer(c_int32_t) :: dtype, ndim
    integer(c_int64_t) :: shape(max_dims)
  end type
  type, bind(c) :: c_options
    integer(c_size_t) :: size
    integer(c_int32_t) :: slots, on_full, producers
  end type

  interface
    function c_produce(name, fields, count, options, timeout, out, error, error_size) result(stat) &
        bind(c, name='lockstep_insitu_produce')
      import
      character(kind=c_char), intent(in) :: name(*)
      type(c_field), intent(in) :: fields(*)
      integer(c_int32_t), value :: count
      type(c_options), intent(in) :: options
      real(c_double), value :: timeout
      type(c_ptr), intent(out) :: out
      character(kind=c_char), intent(out) :: error(*)
      integer(c_size_t), value :: error_size
      integer(c_int) :: stat
    end function
    function c_push(ring, arrays, count, timeout, placed, error, error_size) result(stat) &
        bind(c, name='lockstep_insitu_push')
      import
      type(c_ptr), value :: ring
      type(c_ptr), intent(in) :: arrays(*)
      integer(c_int32_t), value :: count
      real(c_double), value :: timeout
      integer(c_int32_t), intent(out) :: placed
      character(kind=c_char), intent(out) :: error(*)
      integer(c_size_t), value :: error_size
      integer(c_int) :: stat
    end function
    function c_close(ring, timeout, drained, error, error_size) result(stat) bind(c, name='lockstep_insitu_close')
      import
      type(c_ptr), value :: ring
      real(c_double), value :: timeout
      integer(c_int32_t), intent(out) :: drained
      character(kind=c_char), intent(out) :: error(*)
      integer(c_size_t), value :: error_size
      integer(c_int) :: stat
    end function
    subroutine c_free(ring) bind(c, name='lockstep_insitu_producer_free')
      import
      type(c_ptr), value :: ring
    end subroutine
  end interface

contains

  ! An array a(s(1), s(2), ...).
  function field_of_array(name, dtype, s) result(field)
    character(len=*), intent(in) :: name
    integer(c_int32_t), intent(in) :: dtype
    integer, intent(in) :: s(:)
    type(insitu_field) :: field
    field%name = name
    field%dtype = dtype
    field%dims = size(s)
    field%shape(1:min(size(s), max_dims)) = s(1:min(size(s), max_dims))
  end function

  ! One number.
  function field_of_number(name, dtype) result(field)
    character(len=*), intent(in) :: name
    integer(c_int32_t), intent(in) :: dtype
    type(insitu_field) :: field
    field%name = name
    field%dtype = dtype
  end function

  ! Makes or joins the ring. The options are those of lockstep_insitu_options.
  subroutine insitu_produce(ring, name, fields, timeout, stat, message, slots, on_full, producers)
    type(insitu_producer), intent(inout) :: ring
    character(len=*), intent(in) :: name
    type(insitu_field), intent(in) :: fields(:)
    real(real64), intent(in) :: timeout
    integer, intent(out) :: stat
    character(len=*), intent(inout) :: message
    integer(c_int32_t), intent(in), optional :: slots, on_full, producers
    type(c_field) :: made(size(fields))
    character(kind=c_char, len=max_name + 1), target :: names(size(fields))
    type(c_options) :: options
    type(c_ptr) :: handle
    character(kind=c_char) :: text(512)
    integer :: i, d
    options = c_options(0_c_size_t, 64, INSITU_WAIT, 1)
    options%size = c_sizeof(options)
    if (present(slots)) options%slots = slots
    if (present(on_full)) options%on_full = on_full
    if (present(producers)) options%producers = producers
    do i = 1, size(fields)
      if (fields(i)%dims < 0 .or. fields(i)%dims > max_dims) then
        stat = 1
        message = 'insitu: the field '//trim(fields(i)%name)//' has more than 8 dims, or too long a name'
        return
      end if
      names(i) = trim(fields(i)%name)//c_null_char
      made(i)%name = c_loc(names(i))
      made(i)%dtype = fields(i)%dtype
      made(i)%ndim = fields(i)%dims
      made(i)%shape = 0
      do d = 1, min(fields(i)%dims, max_dims)
        made(i)%shape(d) = fields(i)%shape(fields(i)%dims + 1 - d)
      end do
    end do
    stat = c_produce(c_text(name), made, int(size(fields), c_int32_t), options, timeout, handle, text, &
                     int(size(text), c_size_t))
    if (stat == 0) ring%handle = handle
    if (stat /= 0) call take_text(text, message)
  end subroutine

  ! Hands over one contiguous array a field, in order: [c_loc(u), c_loc(step)]. `placed` is .false. if the sample was
  ! dropped.
  subroutine insitu_push(ring, arrays, timeout, placed, stat, message)
    type(insitu_producer), intent(in) :: ring
    type(c_ptr), intent(in) :: arrays(:)
    real(real64), intent(in) :: timeout
    logical, intent(out) :: placed
    integer, intent(out) :: stat
    character(len=*), intent(inout) :: message
    character(kind=c_char) :: text(512)
    integer(c_int32_t) :: done
    done = 0
    stat = c_push(ring%handle, arrays, int(size(arrays), c_int32_t), timeout, done, text, int(size(text), c_size_t))
    placed = done /= 0
    if (stat /= 0) call take_text(text, message)
  end subroutine

  ! The producer has finished. `drained`: whether consumers have taken all samples within `timeout`.
  subroutine insitu_close(ring, timeout, drained, stat, message)
    type(insitu_producer), intent(in) :: ring
    real(real64), intent(in) :: timeout
    logical, intent(out) :: drained
    integer, intent(out) :: stat
    character(len=*), intent(inout) :: message
    character(kind=c_char) :: text(512)
    integer(c_int32_t) :: all
    all = 0
    stat = c_close(ring%handle, timeout, all, text, int(size(text), c_size_t))
    drained = all /= 0
    if (stat /= 0) call take_text(text, message)
  end subroutine

  subroutine insitu_free(ring)
    type(insitu_producer), intent(inout) :: ring
    call c_free(ring%handle)
    ring%handle = c_null_ptr
  end subroutine

  function c_text(text) result(chars)
    character(len=*), intent(in) :: text
    character(kind=c_char) :: chars(len_trim(text) + 1)
    integer :: i
    do i = 1, len_trim(text)
      chars(i) = text(i:i)
    end do
    chars(len_trim(text) + 1) = c_null_char
  end function

  subroutine take_text(chars, message)
    character(kind=c_char), intent(in) :: chars(:)
    character(len=*), intent(inout) :: message
    integer :: i
    message = ''
    do i = 1, min(size(chars), len(message))
      if (chars(i) == c_null_char) exit
      message(i:i) = chars(i)
    end do
  end subroutine

end module lockstep_insitu
