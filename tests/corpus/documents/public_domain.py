"""Sentences from books and speeches in the public domain, from which tests create documents."""

import random

# ruff: noqa: E501

TEXT = """\
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and dedicated to the proposition that all men are created equal.
Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so dedicated, can long endure.
We are met on a great battle-field of that war.
We have come to dedicate a portion of that field, as a final resting place for those who here gave their lives that that nation might live.
It is altogether fitting and proper that we should do this.
The world will little note, nor long remember what we say here, but it can never forget what they did here.
It is for us the living, rather, to be dedicated here to the unfinished work which they who fought here have thus far so nobly advanced.
When in the Course of human events, it becomes necessary for one people to dissolve the political bands which have connected them with another, a decent respect to the opinions of mankind requires that they should declare the causes.
Prudence, indeed, will dictate that Governments long established should not be changed for light and transient causes.
It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.
However little known the feelings or views of such a man may be on his first entering a neighbourhood, this truth is so well fixed in the minds of the surrounding families.
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do.
Once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it.
So she was considering in her own mind, as well as she could, for the hot day made her feel very sleepy and stupid, whether the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies.
There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say to itself that it would be late.
The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down.
Either the well was very deep, or she fell very slowly, for she had plenty of time as she went down to look about her.
Call me Ishmael.
Some years ago, never mind how long precisely, having little or no money in my purse, and nothing particular to interest me on shore, I thought I would sail about a little and see the watery part of the world.
It is a way I have of driving off the spleen and regulating the circulation.
Whenever it is a damp, drizzly November in my soul, I account it high time to get to sea as soon as I can.
There is nothing surprising in this.
If they but knew it, almost all men in their degree, some time or other, cherish very nearly the same feelings towards the ocean with me.
In the beginning God created the heaven and the earth.
And the earth was without form, and void; and darkness was upon the face of the deep.
When we look to the individuals of the same variety of our older cultivated plants and animals, one of the first points which strikes us, is, that they generally differ much more from each other, than do the individuals of any one species in a state of nature.
Owing to this struggle for life, any variation, however slight and from whatever cause proceeding, will tend to the preservation of that individual, and will generally be inherited by its offspring.
There is grandeur in this view of life, with its several powers, having been originally breathed into a few forms or into one.
It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.
There were a king with a large jaw and a queen with a plain face, on the throne of England.
You will rejoice to hear that no disaster has accompanied the commencement of an enterprise which you have regarded with such evil forebodings.
I arrived here yesterday, and my first task is to assure my dear sister of my welfare and increasing confidence in the success of my undertaking.
I am already far north of London, and as I walk in the streets of Petersburgh, I feel a cold northern breeze play upon my cheeks, which braces my nerves and fills me with delight.
To Sherlock Holmes she is always the woman.
I have seldom heard him mention her under any other name.
All cold, precise but admirably balanced mind as he was, he took the emotions for a hindrance to the finest observation.
The studio was filled with the rich odour of roses, and when the light summer wind stirred amidst the trees of the garden, there came through the open door the heavy scent of the lilac.
The mass of men lead lives of quiet desperation.
I went to the woods because I wished to live deliberately, to front only the essential facts of life, and see if I could not learn what it had to teach.
No one would have believed in the last years of the nineteenth century that this world was being watched keenly and closely by intelligences greater than our own.
With infinite complacency men went to and fro over this globe about their little affairs, serene in their assurance of their empire over matter.
The planet Mars, I scarcely need remind the reader, revolves about the sun at a mean distance of many millions of miles.
You don't know about me without you have read a book by the name of The Adventures of Tom Sawyer; but that ain't no matter.
The river Nellie, a cruising yawl, swung to her anchor without a flutter of the sails, and was at rest.
All happy families are alike; each unhappy family is unhappy in its own way.
"""
SENTENCES = TEXT.strip().splitlines()


def paragraphs(count: int, seed: int, sentences: int = 4) -> list[str]:
    """Returns random paragraphs, each with `sentences` different sentences in random order."""
    draw = random.Random(seed)
    return [" ".join(draw.sample(SENTENCES, sentences)) for _ in range(count)]
