"""Who is in a generation of an elastic job: a worker's link to the coordinator, and its service."""

from tfring.membership.errors import Dismissed as Dismissed
from tfring.membership.errors import GenerationEnded as GenerationEnded
from tfring.membership.errors import WaitCancelled as WaitCancelled
from tfring.membership.link import WorkerLink as WorkerLink
from tfring.membership.records import Member as Member
from tfring.membership.records import Position as Position
from tfring.membership.records import Record as Record
from tfring.membership.service import CoordinatorService as CoordinatorService
